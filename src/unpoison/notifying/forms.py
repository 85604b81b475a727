"""How does a notice look as plain text, as JSON and in Slack?

Each says in this order: what is poisoned, since when, how bad it is, what unpoison does, and what to do. Whatever text came from
elsewhere is harmless: no line ends and control characters, no markup and no mentions in Slack.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from unpoison.model.dead_letter import iso
from unpoison.model.wording import in_words, one_line
from unpoison.notifying.notice import Kind, Notice, Place

VERSION = 1
"""Of the JSON form: fields are only added while it stays the same."""
LINE = 1_000
"""Characters of one line of a notice."""
TITLE = 140
"""Characters of a title: what Slack and a subject can show."""
_MOST_BLOCK = 2_900
"""Characters of a block in Slack, which takes 3,000."""
_AGAIN = {Kind.PAUSED: "still", Kind.OUTAGE: "still"}


class Written(NamedTuple):
    """A notice with its times, by the clock of this host, and an identity by which receivers know it again."""

    notice: Notice
    place: Place
    at: float
    since: float
    id: str
    parts_since: Sequence[float] = ()


def written(notice: Notice, place: Place, now: float, wall: float) -> Written:
    """`now` is the clock of the notice, `wall` the time since 1970 at that moment."""
    ahead = wall - now
    return Written(notice, place, wall, notice.since + ahead, uuid.uuid4().hex, [part.since + ahead for part in notice.parts])


def title(said: Written) -> str:
    again = f" ({_AGAIN[said.notice.kind]})" if said.notice.is_again and said.notice.kind in _AGAIN else ""
    return one_line(f"{said.notice.title}{again}", TITLE)


def lines(said: Written) -> Iterator[tuple[str, str]]:
    """What a notice says, as label and text, in the order in which it is read. Without what to do."""
    notice = said.notice
    yield "what", one_line(notice.title, LINE)
    if notice.error:
        yield "error", one_line(notice.error, LINE)
    ago = said.at - said.since
    yield (
        "since",
        f"{datetime.fromtimestamp(said.since, UTC):%Y-%m-%d %H:%M:%S UTC}" + (f" ({in_words(ago)} ago)" if ago >= 1 else ""),
    )
    yield "how bad", one_line(notice.bad, LINE)
    for part in notice.parts:
        yield "", one_line(f"{part.title}: {part.bad}" + (f" ({part.fingerprint})" if part.fingerprint else ""), LINE)
    for group, count in notice.groups.items():
        yield "", one_line(f"{count:,} of group {group}", LINE)
    yield "unpoison", one_line(notice.doing, LINE)


def where(said: Written) -> str:
    """The last line: where it comes from."""
    named = [said.place.host, f"process {said.place.process}", said.place.app and f"app {said.place.app}"]
    named += [
        said.notice.source and f"source {said.notice.source}",
        said.notice.fingerprint and f"group {said.notice.fingerprint}",
    ]
    return one_line(" · ".join(filter(None, named)), LINE)


def link(said: Written) -> str:
    """The address that the app has given for this source and group, if it has."""
    found = said.place.link
    for name, value in (("source", said.notice.source), ("group", said.notice.fingerprint)):
        found = found.replace(f"{{{name}}}", quote(one_line(value), safe=""))
    return found


def as_text(said: Written) -> str:
    """The body of an e-mail, and the `text` of the JSON form."""
    told = [f"{label + ':' if label else '':10}{text}" for label, text in lines(said)]
    for step in said.notice.todo:
        told += ["", f"{one_line(step.text, LINE)}:", f"  {one_line(step.command, LINE)}"]
    if found := link(said):
        told += ["", one_line(found, LINE)]
    return "\n".join([*told, "", where(said), ""])


def as_json(said: Written) -> dict[str, Any]:
    """The generic webhook. docs/notify.md describes the fields."""
    notice = said.notice
    return {
        "version": VERSION,
        "id": said.id,
        "kind": str(notice.kind),
        "at": iso(said.at),
        "host": said.place.host,
        "process": said.place.process,
        "app": said.place.app or None,
        "source": one_line(notice.source, LINE) or None,
        "title": title(said),
        "since": iso(said.since),
        "bad": one_line(notice.bad, LINE),
        "counts": _numbers(notice.counts),
        "groups": {one_line(group, LINE): count for group, count in notice.groups.items()},
        "doing": one_line(notice.doing, LINE),
        "todo": [{"text": one_line(step.text, LINE), "command": one_line(step.command, LINE)} for step in notice.todo],
        "fingerprint": one_line(notice.fingerprint, LINE) or None,
        "classification": notice.classification or None,
        "error": one_line(notice.error, LINE) or None,
        "letter_id": one_line(notice.letter_id, LINE) or None,
        "again": notice.is_again,
        "link": link(said) or None,
        "parts": [_part(part, since) for part, since in zip(notice.parts, said.parts_since, strict=True)],
        "text": as_text(said),
    }


def _part(part: Notice, since: float) -> dict[str, Any]:
    return {
        "kind": str(part.kind),
        "source": one_line(part.source, LINE) or None,
        "title": one_line(part.title, TITLE),
        "since": iso(since),
        "counts": _numbers(part.counts),
        "fingerprint": one_line(part.fingerprint, LINE) or None,
        "error": one_line(part.error, LINE) or None,
    }


def _numbers(counts: Mapping[str, float]) -> dict[str, float]:
    """Whole numbers as such."""
    return {name: int(value) if value == int(value) else value for name, value in counts.items()}


def as_slack(said: Written) -> dict[str, Any]:
    """What Slack takes. Text from elsewhere stands in blocks of plain text, in which nothing is markup or a mention."""
    told = "\n".join(f"{label}: {text}" if label else f"• {text}" for label, text in list(lines(said))[1:])
    blocks = [
        {"type": "header", "text": _plain(title(said), TITLE)},
        {"type": "section", "text": _plain(told, _MOST_BLOCK)},
        *({"type": "section", "text": _command(step.text, step.command)} for step in said.notice.todo),
        *([{"type": "section", "text": _plain(found, _MOST_BLOCK)}] if (found := link(said)) else []),
        {"type": "context", "elements": [_plain(where(said), _MOST_BLOCK)]},
    ]
    return {"text": escaped(title(said)), "blocks": blocks, "parse": "none", "link_names": False, "unfurl_links": False}


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": text if len(text) <= limit else f"{text[: limit - 1]}…", "emoji": False}


def _command(text: str, command: str) -> dict[str, Any]:
    text, command = one_line(text, LINE), one_line(command, LINE)
    if "`" in command:  # it would end the code
        return _plain(f"{text}: {command}", _MOST_BLOCK)
    return {"type": "mrkdwn", "text": f"{escaped(text)}:\n```{escaped(command)}```", "verbatim": True}


def escaped(text: str) -> str:
    """For Slack: without the characters that begin a mention or a link, and with none that marks up."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
