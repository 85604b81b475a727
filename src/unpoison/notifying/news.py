"""What do observers hear that a person may have to hear of too?

Plain values that have nothing of a payload in them: of an error only its gist is left, in which the values of one message are
taken out. Times are on the clock of the notifier.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from unpoison.control.admission import TooManyDead
from unpoison.control.changes import (
    BudgetUsedUp,
    Change,
    Closed,
    Expiring,
    Opened,
    OperatorPause,
    Paused,
    PauseReason,
    Resumed,
    Slowed,
    StillDown,
)
from unpoison.control.evidence import Evidence
from unpoison.model.error_text import gist
from unpoison.model.failure import Failure
from unpoison.model.wording import counted, first_line, in_words, one_line
from unpoison.notifying.commands import Commands
from unpoison.notifying.notice import Kind, Step
from unpoison.port.broker_url import masked_text
from unpoison.reporting import control_lines

TOLD_LENGTH = 800
"""Characters of what a broker says."""


class Dead(NamedTuple):
    """A message is a dead letter. `since` is when it first failed."""

    source: str
    fingerprint: str
    classification: str
    error: str
    letter_id: str
    since: float


class Died(NamedTuple):
    """A worker process has died, or was ended for being stuck, with this message in it."""

    source: str
    fingerprint: str
    error: str


class Begun(NamedTuple):
    """Something has begun that lasts, or still lasts."""

    kind: Kind
    source: str
    title: str
    since: float
    bad: str
    doing: str
    todo: Sequence[Step]
    counts: Mapping[str, float] = {}
    error: str = ""
    about: str = ""

    @property
    def subject(self) -> str:
        return f"{self.kind}|{self.source}|{self.about}"


class Over(NamedTuple):
    """It is over."""

    subject: str
    title: str
    doing: str


class Spent(NamedTuple):
    """The retry budget is used up; told once a minute while it lasts."""

    source: str
    retries: int
    doing: str


class Deleted(NamedTuple):
    """The broker will delete what waits."""

    source: str
    waited: float
    limit: float
    doing: str


News: TypeAlias = Dead | Died | Begun | Over | Spent | Deleted


class Failed(NamedTuple):
    """What is kept of a failure until the thread of the notifier reads it: no body, no traceback, not the whole text."""

    source: str
    fingerprint: str
    classification: str
    kind: str
    text: str
    letter_id: str
    since: float | None
    is_dead: bool
    has_died: bool


def failed(source: str, failure: Failure, letter_id: str | None, since: float | None, *, is_dead: bool) -> Failed:
    """`since` is when the message first failed, in seconds since 1970."""
    kind, text, has_died = str(failure.classification), first_line(failure.text), failure.crash is not None
    fingerprint = failure.fingerprint or f"{source}|{failure.type_name}"
    return Failed(source, fingerprint, kind, failure.type_name, text, letter_id or "", since, is_dead, has_died)


def of_failure(one: Failed, now: float, wall: float) -> Iterator[News]:
    """The error without secrets, and without the values of its message."""
    error = _error(one.kind, one.text)
    if one.has_died:
        yield Died(one.source, one.fingerprint, error)
    if one.is_dead:
        since = now - max(0.0, wall - (wall if one.since is None else one.since))
        yield Dead(one.source, one.fingerprint, one.classification, error, one.letter_id, since)


@lru_cache(maxsize=500)
def _error(kind: str, text: str) -> str:
    said = gist(masked_text(first_line(text)), kind)
    return one_line(f"{kind}: {said}" if said else kind, 300)


BROKER = "broker"
"""What a pause is called that the broker causes; all others of a source are one."""


def lost_broker(source: str, said: str, now: float, commands: Commands) -> Begun:
    said = one_line(masked_text(said), TOLD_LENGTH)
    doing = f"No message is lost: it tries again until the broker can be used. {said}"
    title = f"{source!r} is paused: the broker cannot be used"
    return Begun(Kind.PAUSED, source, title, now, "", doing, commands.of_broker(), about=BROKER)


def found_broker(source: str) -> Over:
    return Over(f"{Kind.PAUSED}|{source}|{BROKER}", f"{source!r} has resumed", "The broker can be used again.")


class Moment(NamedTuple):
    """The same moment on the clock of the notifier, on that of flow control, and in seconds since 1970."""

    now: float
    control: float
    wall: float


def controlled(source: str, changes: Sequence[Change], at: Moment, commands: Commands) -> Iterator[News]:
    """What flow control has decided, in the words of the log."""
    harmless = [_without_values(change) for change in changes]
    pausing = [change.reason for change in harmless if isinstance(change, Paused)]
    for change in harmless:
        if isinstance(change, Opened) and change.evidence in pausing:
            continue  # an outage that pauses the source is told once
        (line,) = control_lines.lines(source, [change], at.control)
        found = _news(source, change, one_line(masked_text(line.text)), at, commands)
        if found is not None:
            yield found


def _news(source: str, change: Change, doing: str, at: Moment, commands: Commands) -> News | None:
    found: News | None = None
    match change:
        case Paused(reason):
            found = _pause(source, reason, doing, at, commands)
        case Resumed():
            found = Over(f"{Kind.PAUSED}|{source}|", f"{source!r} has resumed", doing)
        case Opened(evidence) | StillDown(evidence, _):
            found = _outage(source, evidence, doing, at, commands)
        case Closed(dependency):
            subject = f"{Kind.OUTAGE}|{source}|{dependency}"
            found = Over(subject, one_line(f"{source!r}: the outage of {dependency} is over"), doing)
        case BudgetUsedUp(retries, _):
            found = Spent(source, retries, doing)
        case Expiring(waited, limit):
            found = Deleted(source, waited, limit, doing)
    return found


def _pause(source: str, reason: PauseReason, doing: str, at: Moment, commands: Commands) -> Begun:
    since, why, bad, counts = _of_reason(reason, at)
    title = one_line(f"{source!r} is paused{why}")
    error = reason.samples[0] if not isinstance(reason, OperatorPause) and reason.samples else ""
    return Begun(Kind.PAUSED, source, title, since, bad, doing, commands.of_pause(source, reason), counts, error)


def _of_reason(reason: PauseReason, at: Moment) -> tuple[float, str, str, Mapping[str, float]]:
    """Since when, why in few words, how bad it is, and that in numbers."""
    match reason:
        case OperatorPause(by, _, since):
            return at.now - max(0.0, at.wall - since), f" by {by}", "Nothing of it starts", {}
        case TooManyDead():
            of = f"Of {counted(reason.ended, 'message')} that ended within {in_words(reason.within)}"
            bad = f"{of}, {reason.dead:,} were to become dead letters"
            counts = {"would_be_dead": reason.dead, "ended": reason.ended}
            return _since(reason, at), ": too many dead letters", bad, counts
        case Evidence():
            return _since(reason, at), f": {reason.problem}", _failed(reason), {"messages": reason.messages}


def _outage(source: str, evidence: Evidence, doing: str, at: Moment, commands: Commands) -> Begun:
    return Begun(
        Kind.OUTAGE,
        source,
        one_line(f"{source!r}: {evidence.problem}"),
        _since(evidence, at),
        _failed(evidence),
        doing,
        commands.of_outage(source),
        {"messages": evidence.messages},
        evidence.samples[0] if evidence.samples else "",
        evidence.dependency,
    )


def _since(reason: Evidence | TooManyDead, at: Moment) -> float:
    return at.now - max(0.0, at.control - reason.since)


def _failed(evidence: Evidence) -> str:
    return f"{counted(evidence.messages, 'different message')} failed"


def _without_values(change: Change) -> Change:
    """With samples that have nothing of a payload in them."""
    if isinstance(change, Paused | Resumed) and not isinstance(change.reason, OperatorPause):
        return change._replace(reason=_harmless(change.reason))
    if isinstance(change, Opened | StillDown | Slowed):
        return change._replace(evidence=_harmless(change.evidence))
    return change


def _harmless(reason: Evidence | TooManyDead) -> Any:
    samples = tuple(dict.fromkeys(_error(*each.partition(": ")[::2]) for each in reason.samples))
    return msgspec.structs.replace(reason, samples=samples)
