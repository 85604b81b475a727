"""How are messages sent from the command line?"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import click

from unpoison.broker_url import masked
from unpoison.brokers import broker_for
from unpoison.cli.durations import duration
from unpoison.cli.input import Batch, Form, arguments, batches, check_file, json_lines, raw_lines
from unpoison.cli.json_output import print_json
from unpoison.cli.screen import progress
from unpoison.errors import CapabilityError, PayloadError, UnpoisonError
from unpoison.escaping import one_line
from unpoison.message import NO_HEADERS, Outgoing
from unpoison.options import settings_from
from unpoison.payload import new_ids
from unpoison.ports import Broker, Capability
from unpoison.registration import check_source

INPUT_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@dataclass
class Sender:
    """Sends batches, each as a whole or not at all, and keeps the ids of what was sent."""

    broker: Broker
    source: str
    key: str | None
    headers: Mapping[str, str]
    delay: float
    max_body: int | None
    ids: list[str] = field(default_factory=list)

    def send(self, bodies: Batch, ids: Sequence[str] | None = None) -> None:
        for body in bodies:
            if self.max_body is not None and len(body) > self.max_body:
                raise PayloadError(
                    f"A message has {len(body):,} bytes, the limit is {self.max_body:,}: consumers would refuse it. "
                    f"Send a reference to where it is stored, or raise UNPOISON_MAX_BODY here and in the consumers."
                )
        names = new_ids(len(bodies)) if ids is None else ids
        if bodies:
            pairs = zip(names, bodies, strict=True)
            self.broker.publish([Outgoing(name, self.source, body, self.key, self.headers, self.delay) for name, body in pairs])
        self.ids += names


@click.command(
    "publish",
    epilog="\b\nExamples:\n"
    "  unpoison publish sqlite:///shop.db orders '{\"id\": 1}' '{\"id\": 2}' --key ada\n"
    "  unpoison publish sqlite:///shop.db orders --file orders.jsonl --delay 5m\n"
    '  some-program | unpoison publish "$UNPOISON_URL" orders --lines',
)
@click.argument("url")
@click.argument("source")
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@click.option("--file", "path", type=INPUT_FILE, metavar="FILE", help="Read the messages from this file.")
@click.option("--raw", is_flag=True, help="The whole input is one message; each PAYLOAD is sent as it is.")
@click.option("--lines", is_flag=True, help="Each line is a message, sent as it is.")
@click.option("--key", help="The key of the messages.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; can be given several times.")
@click.option("--delay", callback=duration, default="0", metavar="TIME", help="Nobody may start them before: 10s, 5m, 2h, 1d.")
@click.option("--id", "id_", metavar="ID", help="The id of the message, where there is one.")
@click.option("--json", "as_json", is_flag=True, help='Print {"source": NAME, "ids": [ids]}.')
def command(
    *,
    url: str,
    source: str,
    payloads: Sequence[str],
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

    Each PAYLOAD is one message and must be JSON, as must each line of a file or of standard input, which is read where there
    is no PAYLOAD (or "-"). Nothing of a file with a bad line is sent; standard input is checked and sent as it comes.
    """
    if raw and lines:
        raise click.UsageError("--raw makes one message of the input, --lines one of each line. Give one of them.")
    is_input = not payloads or payloads == ("-",)
    if path and payloads:
        raise click.UsageError("Payloads are given both as arguments and with --file. Give one of them.")
    form = raw_lines if lines else json_lines
    given = None if is_input else arguments(payloads, as_they_are=raw or lines)
    if path and str(path) != "-" and not raw:
        check_file(path, form)
    sender = _sender(url, source, key, headers, delay)
    bodies = iter([given]) if given is not None else _read(path, None if raw else form)
    _send(sender, bodies, id_)
    if as_json:
        print_json({"source": source, "ids": sender.ids})
    else:
        what = f"message {one_line(sender.ids[0])}" if len(sender.ids) == 1 else f"{len(sender.ids):,} messages"
        click.echo(f"Sent {what} to {source!r}.")


def _sender(url: str, source: str, key: str | None, headers: Sequence[str], delay: float) -> Sender:
    check_source(source)
    parsed = _headers(headers)
    settings = settings_from({"url": url})
    broker = broker_for(url)
    if Capability.SHARED not in broker.capabilities:
        raise CapabilityError(
            f"{masked(url)!r} keeps everything in the process that uses it, so nobody would ever see these messages. "
            f"Publish from inside that process, with app.publish(…), or use a broker that several processes can share."
        )
    broker.open([], create=settings.create)
    return Sender(broker, source, key, parsed, delay, settings.max_body)


def _headers(given: Sequence[str]) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} has no name and value. Write --header name=value", param_hint="--header")
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice, and a header has one value.", param_hint="--header")
        headers[name] = value
    return headers or NO_HEADERS


def _send(sender: Sender, bodies: Iterator[Batch], id_: str | None) -> None:
    try:
        if id_ is None:
            for batch in bodies:
                sender.send(batch)
            return
        only = [body for batch in bodies for body in batch]
        if len(only) != 1:
            raise click.UsageError(f"--id names one message, but there are {len(only):,}. Leave it out, or send them one by one.")
        sender.send(only, [id_])
    except (click.ClickException, UnpoisonError) as error:
        if not sender.ids:
            raise
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise click.ClickException(f"{said} Before that {len(sender.ids):,} messages were sent, the rest was not.") from error
    finally:
        sender.broker.close()


def _read(path: Path | None, form: Form | None) -> Iterator[Batch]:
    """The messages of a file or of standard input; without a form all of it is one message."""
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            click.echo("Reading from the terminal; Ctrl-D ends the input.", err=True)
        yield from (batch for _, batch in _batches(sys.stdin.buffer, form))
        return
    with path.open("rb") as stream, progress("Publishing") as advance:
        size = path.stat().st_size
        for read, batch in _batches(stream, form):
            yield batch
            if advance:
                advance(read, size)


def _batches(stream: BinaryIO, form: Form | None) -> Iterator[tuple[int, Batch]]:
    return batches(stream, form) if form else iter([(0, [stream.read()])])
