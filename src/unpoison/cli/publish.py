"""`unpoison publish`: sends messages from arguments, a file or standard input."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from unpoison.body.payload import check_text, new_ids, why_unsendable
from unpoison.brokers import ADAPTERS, broker_for
from unpoison.cli.input_output import DURATION, print_json
from unpoison.cli.screen import progress
from unpoison.decide.options import settings_from
from unpoison.errors import CapabilityError, PublishedMessage, PublishFailed, UnpoisonError, ranges
from unpoison.flow.registration import check_source
from unpoison.flow.sending import check, outgoing, published
from unpoison.model.message import NO_HEADERS
from unpoison.model.wording import one_line
from unpoison.port.broker import Broker, Capability
from unpoison.port.broker_url import masked, masked_text

# Reading. Input is JSON lines unless an option says otherwise. It is read in batches, as it comes: what `tail -f` prints is sent
# at once, a large file in steps of a megabyte. A batch is checked before it is sent, a file before any of its batches is.


CHUNK = 1024 * 1024


class Item(NamedTuple):
    """One message, and the number of its line or of its argument."""

    number: int
    body: bytes


Batch = Sequence[Item]

Form = Callable[[Sequence[bytes], int], Batch]
"""Makes messages of lines. Its second argument is the number of the first line, for error messages."""


def json_lines(lines: Sequence[bytes], first: int) -> Batch:
    """One message for each line, after checking that all are JSON. Empty lines are left out."""
    found = [Item(number, line.strip()) for number, line in enumerate(lines, first) if line.strip()]
    for number, line in found:
        _check(line, f"Line {number:,}")
    return found


def raw_lines(lines: Sequence[bytes], first: int) -> Batch:
    """One message for each line, unchecked."""
    return [Item(number, line) for number, line in enumerate(lines, first)]


def items_of(payloads: Sequence[str], *, as_they_are: bool) -> Batch:
    """One message for each argument, in the bytes that the shell passed."""
    items = [Item(number, os.fsencode(payload)) for number, payload in enumerate(payloads, 1)]
    if not as_they_are:
        for number, body in items:
            _check(body, f"Payload {number:,} ({payloads[number - 1]!r:.60})")
    return items


def batches(stream: BinaryIO, form: Form | None) -> Iterator[tuple[int, Batch]]:
    """(bytes read so far, messages) until the input ends. Without a form the whole input is one message."""
    if form is None:
        yield 0, [Item(1, stream.read())]
        return
    rest, line, read = b"", 1, 0
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]  # typeshed knows it for files and pipes only
        read += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield read, form(lines, line)
            line += len(lines)
    if rest:
        yield read, form([rest], line)


def _check(body: bytes, where: str) -> None:
    """Refuse what is not JSON, or what consumers would refuse."""
    if why := why_unsendable(body):
        raise click.ClickException(f"{where} {why.rstrip('.')}. Fix it, or send it as it is with --raw or --lines.")


_URL = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://|(?:{'|'.join(map(re.escape, ADAPTERS))}):")
INPUT_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@dataclass
class Sender:
    """Sends batches, and keeps the ids of what was stored."""

    broker: Broker
    url: str
    source: str
    key: str | None
    headers: Mapping[str, str]
    delay: float
    max_body: int | None
    unit: str
    """What the numbers of messages count: lines or payloads."""
    ids: list[str] = field(default_factory=list)
    is_new: bool = False
    """Whether the source did not exist before."""

    def send(self, items: Batch, ids: Sequence[str] | None = None) -> None:
        """Raises NotAllSent, with the numbers of the lines, if some are not stored."""
        if not items:
            return
        names = new_ids(len(items)) if ids is None else ids
        bodies = [item.body for item in items]
        messages = outgoing(
            self.source, bodies, names, key=self.key, headers=self.headers, delay=self.delay, max_body=self.max_body
        )
        outcome = published(lambda: self.broker, messages, self.url)
        self.is_new |= self.source in outcome.created
        try:
            check(messages, outcome)
        except PublishFailed as error:
            self.ids += [each.id for each in error.stored]
            raise NotAllSent(error, items, self) from error
        self.ids += names


class NotAllSent(click.ClickException):
    """Some messages are not stored, or it is unknown whether they are."""

    def __init__(self, error: PublishFailed, items: Batch, sender: Sender) -> None:
        self.refused, self.unknown = ([_entry(each, items) for each in found] for found in (error.refused, error.unknown))
        super().__init__(str(error) if len(items) == 1 else self._told(sender, items[-1].number))

    def _told(self, sender: Sender, last: int) -> str:
        numbers = f"{len(sender.ids):,} stored, {len(self.refused):,} refused, {len(self.unknown):,} unknown"
        lines = [f"Messages for {sender.source!r}: {numbers}. Nothing after {sender.unit} {last:,} was sent."]
        lines += _by_reason(self.refused, f"Refused, {sender.unit}")
        lines += _by_reason(self.unknown, f"Perhaps stored, {sender.unit}")
        if self.unknown:
            lines.append("  To be certain, send those again, each with --id and the id that --json prints.")
        return "\n".join(lines)


def _entry(message: PublishedMessage, items: Batch) -> dict[str, Any]:
    kind = {} if message.refusal is None else {"refusal": message.refusal.value}
    return {"number": items[message.position].number, "id": message.id, **kind, "reason": message.reason}


def _by_reason(entries: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    """One line for each reason, with the numbers of the messages that it is for."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        found.setdefault(entry["reason"], []).append(entry["number"])
    return [f"  {what} {ranges(numbers)}: {reason}" for reason, numbers in found.items()]


@click.command(
    "publish",
    epilog="\b\nExamples:\n"
    "  unpoison publish sqlite:///shop.db orders '{\"id\": 1}' '{\"id\": 2}' --key ada\n"
    "  unpoison publish sqlite:///shop.db orders --file orders.jsonl --delay 5m\n"
    "  some-program | unpoison publish orders --lines",
)
@click.argument("arguments", metavar="[URL] SOURCE [PAYLOAD]...", nargs=-1)
@click.option("--file", "path", type=INPUT_FILE, metavar="FILE", help="Read the messages from this file.")
@click.option("--raw", is_flag=True, help="The whole input is one message; each PAYLOAD is sent as it is.")
@click.option("--lines", is_flag=True, help="Each line is a message, sent as it is.")
@click.option("--key", help="The key of the messages.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; can be given several times.")
@click.option("--delay", type=DURATION, default="0", help="Start them no sooner than after: 10s, 5m, 2h, 1d.")
@click.option("--id", "id_", metavar="ID", help="The id of the message, if there is only one.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids, and which were refused or are unknown, as JSON.")
def command(
    *,
    arguments: Sequence[str],
    path: Path | None,
    raw: bool,
    lines: bool,
    key: str | None,
    headers: Sequence[str],
    delay: float,
    id_: str | None,
    as_json: bool,
) -> None:
    """Send messages to a source. They are stored durably when this ends with 0.

    The first argument is the broker if it looks like a URL (sqlite:///shop.db). Otherwise it is the source, and the broker comes
    from the variable UNPOISON_URL. Use the variable for URLs with a password: other users can see arguments in the process list.

    Each PAYLOAD is one message and must be JSON. Without a PAYLOAD (or with "-") each line of standard input, or of FILE, is one.
    A file with a bad line is not sent at all; standard input is checked and sent as it comes.
    """
    url, source, payloads = _split(arguments)
    if raw and lines:
        raise click.UsageError("--raw makes one message of the input, --lines one of each line. Give one of them.")
    is_input = not payloads or payloads == ("-",)
    if path and payloads:
        raise click.UsageError("Payloads are given both as arguments and with --file. Give one of them.")
    form = raw_lines if lines else json_lines
    given = None if is_input else items_of(payloads, as_they_are=raw or lines)
    if path and str(path) != "-" and not raw:
        with path.open("rb") as stream:  # the whole file is read once before: if a line is bad, nothing is sent
            for _ in batches(stream, form):
                pass
    sender = _sender(url, source, key, headers, delay, "line" if is_input and not raw else "payload")
    bodies = iter([given]) if given is not None else _read(path, None if raw else form)
    failed = _send(sender, bodies, id_)
    if as_json:
        kept = {"refused": failed.refused, "unknown": failed.unknown} if isinstance(failed, NotAllSent) else {}
        print_json({"source": source, "created": sender.is_new, "ids": sender.ids, "refused": [], "unknown": []} | kept)
    if failed is not None:
        raise failed
    if not as_json:
        what = f"message {one_line(sender.ids[0])}" if len(sender.ids) == 1 else f"{len(sender.ids):,} messages"
        click.echo(f"Sent {what} to {source!r}{', which did not exist before' if sender.is_new else ''}.")


def _split(arguments: Sequence[str]) -> tuple[str | None, str, Sequence[str]]:
    """URL, source and payloads. An argument that begins like a URL counts as one, even a wrong one."""
    if arguments and _URL.match(arguments[0]):
        url, *rest = arguments
    elif os.environ.get("UNPOISON_URL"):
        url, rest = None, list(arguments)
    else:
        first = f"{masked_text(arguments[0])!r} is not a URL, so no broker is named" if arguments else "No broker is named"
        raise click.UsageError(f"{first}. Give its URL first, as in sqlite:///shop.db orders, or set the variable UNPOISON_URL.")
    if not rest:
        raise click.UsageError("Missing argument 'SOURCE': the source to send to, such as orders.")
    return url, rest[0], tuple(rest[1:])


def _sender(url: str | None, source: str, key: str | None, headers: Sequence[str], delay: float, unit: str) -> Sender:
    check_source(source)
    parsed = _headers(headers)
    settings = settings_from({"url": url})
    broker = broker_for(settings.url)
    if Capability.SHARED not in broker.capabilities:
        raise CapabilityError(
            f"{masked(settings.url)!r} keeps its messages in one process, so no consumer would ever see these. "
            f"Publish from inside that process with app.publish(…), or use a broker that processes can share."
        )
    broker.open([], create=settings.create)
    return Sender(broker, settings.url, source, key, parsed, delay, settings.max_body, unit)


def _headers(given: Sequence[str]) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE. Write --header name=value", param_hint="--header")
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice. A header has one value: leave one out.", param_hint="--header")
        headers[name] = value
    return headers or NO_HEADERS


def _send(sender: Sender, bodies: Iterator[Batch], id_: str | None) -> click.ClickException | None:
    """Send all batches. Returns the error if some messages are or may be stored; raises it if none is."""
    try:
        if id_ is None:
            for batch in bodies:
                sender.send(batch)
            return None
        check_text("id", id_)
        only = [item for batch in bodies for item in batch]
        if len(only) != 1:
            raise click.UsageError(f"--id names one message, but there are {len(only):,}. Leave it out, or send them one by one.")
        sender.send(only, [id_])
    except NotAllSent as error:
        return error
    except (click.ClickException, UnpoisonError) as error:
        if not sender.ids:
            raise
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return click.ClickException(f"{said} {len(sender.ids):,} messages were sent before that, the rest were not.")
    finally:
        sender.broker.close()
    return None


def _read(path: Path | None, form: Form | None) -> Iterator[Batch]:
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            click.echo("Reading from the terminal; Ctrl-D ends the input.", err=True)
        yield from (batch for _, batch in batches(sys.stdin.buffer, form))
        return
    with path.open("rb") as stream, progress("Publishing") as advance:
        size = path.stat().st_size
        for read, batch in batches(stream, form):
            yield batch
            if advance:
                advance(read, size)
