"""How does a person read a dead letter? What happened first, then the message, then how it came to that."""

import textwrap
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from unpoison.cli.screen import moment
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import Crash
from unpoison.model.wording import counted, one_line, visible

TEXT_LIMIT = 20_000
"""Characters of a body that are shown; with --body and --json it is always whole."""

MARGIN = " " * 16

DUMP_LIMIT = 512
"""Bytes of a body that is not text."""


def print_letter(letter: DeadLetter, screen: Console) -> None:
    """Everything, in readable order, with headings. Nothing in it can act on a terminal."""
    screen.print(Text(f"Dead letter {one_line(letter.id)} ({one_line(letter.state)})", style="bold"))
    screen.print(Text(one_line(letter.reason)), Text(), sep="\n")
    for name, value in _facts(letter):
        lines = textwrap.wrap(one_line(value), max(screen.width - len(MARGIN), 20)) or [""]
        screen.print(Text.assemble((f"  {name:<{len(MARGIN) - 2}}", "dim"), f"\n{MARGIN}".join(lines)), soft_wrap=True)
    for heading, content in _sections(letter):
        screen.print(Text(f"\n{heading}", style="bold"))
        # Lines are left to the terminal to break, so that what is copied from it is what was sent.
        screen.print(Text("\n".join(f"  {line}" if line else "" for line in content.rstrip("\n").split("\n"))), soft_wrap=True)


def _sections(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    kind, body = body_shown(letter.body)
    heading = f"Body: {counted(len(letter.body), 'byte')}, {kind}" if not letter.is_tombstone else "Body: null, a tombstone"
    yield heading, body
    if letter.message.headers:
        yield "Headers", "\n".join(f"{one_line(name)}: {one_line(value)}" for name, value in letter.message.headers.items())
    if len(letter.history) > 1:  # a single one says what is at the top already
        yield "Attempts that failed", "\n".join(_history(letter))
    if letter.crash is not None and letter.crash.stack:
        yield "Stack when it crashed", visible(letter.crash.stack)
    if letter.crash is not None and letter.crash.log:
        yield "Last log lines before the crash", visible(letter.crash.log)
    if letter.traceback and (letter.crash is None or letter.traceback != letter.crash.stack):
        yield "Traceback", visible(letter.traceback)


def _facts(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    yield "error", f"{letter.error_type}: {letter.error.strip()}".removesuffix(": ")
    yield "rule", letter.rule
    yield "attempts", f"{letter.attempts}" + (f", replayed before: {letter.replays}" if letter.replays else "")
    yield "failed", moment(letter.last_failed_at)
    if moment(letter.first_failed_at) != moment(letter.last_failed_at):
        yield "first failed", moment(letter.first_failed_at)
    yield "source", letter.source
    yield "message id", letter.message.id
    if letter.message.key is not None:
        yield "key", letter.message.key
    yield "fingerprint", letter.fingerprint
    yield "consumer", letter.consumer + (f", code version {letter.code_version}" if letter.code_version else "")
    yield "original", ", ".join(f"{name} {value}" for name, value in letter.original.items())
    if letter.crash is not None:
        yield "crash", ", ".join(_crash(letter.crash))
    if letter.note:
        yield "note", letter.note
    if letter.owner:
        yield "owner", letter.owner


def _crash(crash: Crash) -> Iterator[str]:
    if crash.signal is not None:
        yield crash.signal
    if crash.exit_code is not None:
        yield f"exit code {crash.exit_code}"
    if crash.elapsed is not None:
        yield f"after {crash.elapsed:.3g} s"
    if crash.peak_rss is not None:
        yield f"peak memory {crash.peak_rss / 1e6:,.0f} MB"
    if crash.worker_age is not None:
        yield f"in a worker {crash.worker_age:,.0f} s old"


def _history(letter: DeadLetter) -> Iterator[str]:
    for past in letter.history:
        yield f"{past.attempt}  {moment(past.at)}  {one_line(past.classification)}  {one_line(past.error)}"


def body_shown(body: bytes) -> tuple[str, str]:
    """What the body is, and how it is shown: JSON in lines, text as it is, anything else as bytes in hexadecimal."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return f"not text (no UTF-8 from byte {error.start:,})", _dump(body)
    if "\0" in text:
        return "not text (it holds zero bytes)", _dump(body)
    try:
        msgspec.json.decode(body)
        # Only lays out and keeps every number and every repeated key as it was sent: they may be what is wrong.
        return "JSON", _cut(visible(msgspec.json.format(text, indent=2)))
    except (msgspec.DecodeError, RecursionError):
        return "text", _cut(visible(text))


def _cut(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    return f"{text[:TEXT_LIMIT]}\n… {counted(len(text) - TEXT_LIMIT, 'more character')}; for all of it add --body"


def _dump(body: bytes) -> str:
    lines = []
    for start in range(0, min(len(body), DUMP_LIMIT), 16):
        row = body[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {letters}")
    if len(body) > DUMP_LIMIT:
        lines.append(f"… {counted(len(body) - DUMP_LIMIT, 'more byte')}; for all of it add --body")
    return "\n".join(lines)
