"""Prints tables, dead letters and progress bars, on a terminal and in a pipe.

Nothing here interprets markup, emoji codes or links in what it prints. Tables fit the width of a terminal; in a pipe they
are as wide as they need to be, so that grep finds what it looks for.
"""

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeAlias

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from unpoison.model.dead_letter import DROPPED, DeadLetter, Redaction
from unpoison.model.failure import Crash
from unpoison.model.letter_group import LetterGroup
from unpoison.model.message import PastAttempt
from unpoison.model.wording import counted, in_words, one_line, visible

ERROR_LIMIT = 300
PIPE_WIDTH = 2_000
WIDE = 110

Advance = Callable[[int, int], None]
"""Called with (done so far, of how many)."""

_COLOURS = {"transient": "yellow", "throttled": "yellow", "invalid": "magenta", "crash": "bold red", "lost": "bold red"}


def console(*, stderr: bool = False) -> Console:
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def letter_table(letters: Sequence[DeadLetter], width: int, now: float | None = None) -> Table | Text:
    """One line for each letter. On a narrow screen columns are left out: source (ids begin with it), fingerprint, attempts, time.
    The error always stays; where that is still too wide it gets a line of its own."""
    moment = time.time() if now is None else now
    columns = {name: [column(letter, moment) for letter in letters] for name, column in _COLUMNS.items()}
    shown = _that_fit(columns, ("SOURCE", "FINGERPRINT", "ATTEMPTS", "WHEN"), width)
    return _table(columns, shown, width) or _stacked([columns["ID"], columns["CLASSIFICATION"]], columns["ERROR"], width)


def group_table(groups: Sequence[LetterGroup], width: int, now: float | None = None) -> Table | Text:
    """One line for each group, as `letter_table` has one for each letter."""
    moment = time.time() if now is None else now
    columns = {name: [column(group, moment) for group in groups] for name, column in _GROUP_COLUMNS.items()}
    shown = _that_fit(columns, ("SOURCES", "FIRST", "CLASSIFICATION", "LAST"), width)
    return _table(columns, shown, width) or _stacked([columns["GROUP"], columns["COUNT"]], columns["ERROR"], width)


def said_of_group(fingerprint: str, state: str | None, owner: str | None, note: str | None) -> str:
    """What people have said about it, in one line."""
    said = [f"group {one_line(fingerprint)} is {state}"]
    if owner:
        said.append(f"owner {one_line(owner)}")
    if note:
        said.append(f"note: {one_line(note)}")
    return "; ".join(said)


Columns: TypeAlias = Mapping[str, Sequence[Text]]


def _that_fit(columns: Columns, first_to_go: Sequence[str], width: int) -> list[str]:
    """The columns that have room, with those left out that can be spared."""
    shown = list(columns)
    for name in first_to_go:
        if _width(columns, shown, width) > width or (name in ("SOURCE", "SOURCES") and width < WIDE):
            shown.remove(name)
    return shown


def _width(columns: Columns, shown: Sequence[str], width: int) -> int:
    needed = {name: max(map(cell_len, [_title(name, width), *map(str, columns[name])])) for name in shown}
    needed["ERROR"] = min(needed["ERROR"], ERROR_LEAST)
    return sum(cells + GAP for cells in needed.values()) - GAP


def _title(name: str, width: int) -> str:
    return name if width >= WIDE else _SHORT.get(name, name)


def _table(columns: Columns, shown: Sequence[str], width: int) -> Table | None:
    """None if it would be too wide."""
    if _width(columns, shown, width) > width:
        return None
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for name in shown:
        right = name in ("ATTEMPTS", "COUNT")
        table.add_column(_title(name, width), no_wrap=name != "ERROR", justify="right" if right else "left")
    for row in zip(*(columns[name] for name in shown), strict=True):
        table.add_row(*row)
    return table


def _stacked(above: Sequence[Sequence[Text]], below: Sequence[Text], width: int) -> Text:
    lines: list[Text] = []
    for cells, error in zip(zip(*above, strict=True), below, strict=True):
        error.truncate(max(width - GAP, 1), overflow="ellipsis")
        lines += [Text("  ").join(cells), Text(" " * GAP) + error]
    return Text("\n").join(lines)


GAP = 2
ERROR_LEAST = 24
"""Columns that the error needs to say anything."""

_SHORT = {"CLASSIFICATION": "CLASS", "ATTEMPTS": "ATT"}
_COLUMNS: dict[str, Callable[[DeadLetter, float], Text]] = {
    "ID": lambda letter, _: Text(one_line(letter.id)),
    "WHEN": lambda letter, now: Text(ago(now - letter.last_failed_at), style="dim"),
    "SOURCE": lambda letter, _: Text(one_line(letter.source)),
    "CLASSIFICATION": lambda letter, _: Text(one_line(letter.classification), style=_COLOURS.get(letter.classification, "red")),
    # The only column that may shrink; its cells are cut, not wrapped.
    "ERROR": lambda letter, _: _error(letter),
    "ATTEMPTS": lambda letter, _: Text(str(letter.attempts)),
    "FINGERPRINT": lambda letter, _: Text(one_line(letter.fingerprint), style="dim"),
}


_GROUP_COLUMNS: dict[str, Callable[[LetterGroup, float], Text]] = {
    "GROUP": lambda group, _: Text(one_line(group.fingerprint) or "-"),
    "COUNT": lambda group, _: Text(f"{group.count:,}"),
    "LAST": lambda group, now: Text(ago(now - group.last_failed_at), style="dim"),
    "FIRST": lambda group, now: Text(ago(now - group.first_failed_at), style="dim"),
    "SOURCES": lambda group, _: Text(one_line(", ".join(group.sources), SOURCES_LIMIT)),
    "CLASSIFICATION": lambda group, _: Text(one_line(group.classification), style=_COLOURS.get(group.classification, "red")),
    "ERROR": lambda group, _: _error(group),
}
SOURCES_LIMIT = 40


def _error(about: DeadLetter | LetterGroup) -> Text:
    return Text(error_line(about), no_wrap=True, overflow="ellipsis")


def error_line(letter: DeadLetter | LetterGroup) -> str:
    """Type and text of the error in one line, without the module of the type."""
    return one_line(f"{letter.error_type.rpartition('.')[2]}: {letter.error.strip()}".removesuffix(": "), ERROR_LIMIT)


def ago(seconds: float) -> str:
    return f"{age(seconds)} ago"


def age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def moment(timestamp: float) -> str:
    """Local time with its zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


@contextmanager
def progress(what: str) -> Iterator[Advance | None]:
    """A bar on standard error, shown from the first call on. Yields None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def advance(done: int, total: int) -> None:
        bar.start()  # not before: short work shows no bar
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()


TEXT_LIMIT = 20_000
"""Characters of a body that `show` prints. --body and --json print all of it."""

MARGIN = " " * 16

DUMP_LIMIT = 512
"""Bytes of a body that is not text."""


def print_letter(letter: DeadLetter, screen: Console) -> None:
    """Print what happened, then the message, then the earlier attempts. No byte of it can act on the terminal."""
    screen.print(Text(f"Dead letter {one_line(letter.id)} ({one_line(letter.state)})", style="bold"))
    screen.print(Text(one_line(letter.reason)), Text(), sep="\n")
    for name, value in _facts(letter):
        lines = textwrap.wrap(one_line(value), max(screen.width - len(MARGIN), 20)) or [""]
        screen.print(Text.assemble((f"  {name:<{len(MARGIN) - 2}}", "dim"), f"\n{MARGIN}".join(lines)), soft_wrap=True)
    for heading, content in _sections(letter):
        screen.print(Text(f"\n{heading}", style="bold"))
        # The terminal breaks the lines, so that copied text is what was sent.
        screen.print(Text("\n".join(f"  {line}" if line else "" for line in content.rstrip("\n").split("\n"))), soft_wrap=True)


def _sections(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    kind, body = body_shown(letter.body)
    heading = f"Body: {counted(len(letter.body), 'byte')}, {kind}" if not letter.is_tombstone else "Body: null, a tombstone"
    yield heading, body
    if letter.message.headers:
        yield "Headers", "\n".join(f"{one_line(name)}: {one_line(value)}" for name, value in letter.message.headers.items())
    if len(letter.history) > 1:  # a single one repeats what is at the top
        yield "Attempts that failed", "\n".join(attempts(letter.history))
    if letter.crash is not None and letter.crash.stack:
        yield "Stack when it crashed", visible(letter.crash.stack)
    if letter.crash is not None and letter.crash.log:
        yield "Last log lines before the crash", visible(letter.crash.log)
    if letter.traceback and (letter.crash is None or letter.traceback != letter.crash.stack):
        yield "Traceback", visible(letter.traceback)


def attempts(history: Sequence[PastAttempt]) -> Iterator[str]:
    """A line for each: the first one with its time, the others with what has changed since the one before."""
    before: PastAttempt | None = None
    for past in history:
        said = f"{one_line(past.classification)}  {one_line(past.error)}"
        if before is None:
            yield f"{past.attempt}  {moment(past.at)}  {said}"
        else:
            is_same = (past.classification, past.error) == (before.classification, before.error)
            replayed = "replayed, " if past.attempt < before.attempt else ""
            later = f"{in_words(max(0.0, past.at - before.at))} later"
            yield f"{past.attempt}  {replayed}{later}  {'the same' if is_same else said}"
        before = past


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
    if letter.trace_id is not None:
        yield "trace", letter.trace_id
    yield "fingerprint", letter.fingerprint
    yield "consumer", letter.consumer + (f", code version {letter.code_version}" if letter.code_version else "")
    yield "original", ", ".join(f"{name} {value}" for name, value in letter.original.items())
    if letter.crash is not None:
        yield "crash", ", ".join(_crash(letter.crash))
    if letter.redaction is not None:
        yield "redacted", _redaction(letter, letter.redaction)
    if letter.note:
        yield "note", letter.note
    if letter.owner:
        yield "owner", letter.owner


def _redaction(letter: DeadLetter, redaction: Redaction) -> str:
    rules = f"by {', '.join(redaction.rules)}; " if redaction.rules else ""
    if redaction.original == DROPPED:
        return f"{rules}the original is not kept, so this letter can be neither revealed nor replayed"
    return f"{rules}the original is encrypted with key {redaction.key}; to see it: {how_to_reveal(letter)}"


def how_to_reveal(letter: DeadLetter) -> str:
    return f"unpoison dlq reveal {letter.id} --reason TEXT"


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


def body_shown(body: bytes) -> tuple[str, str]:
    """What the body is, and how to show it: JSON indented, text as it is, anything else as a hex dump."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return f"not text (invalid UTF-8 at byte {error.start:,})", _dump(body)
    if "\0" in text:
        return "not text (it contains zero bytes)", _dump(body)
    try:
        msgspec.json.decode(body)
        # Indents only. Numbers and repeated keys stay as they were sent: they may be what is wrong.
        return "JSON", _cut(visible(msgspec.json.format(text, indent=2)))
    except (msgspec.DecodeError, RecursionError):
        return "text", _cut(visible(text))


def _cut(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    return f"{text[:TEXT_LIMIT]}\n… {counted(len(text) - TEXT_LIMIT, 'more character')}; to see all of it add --body"


def _dump(body: bytes) -> str:
    lines = []
    for start in range(0, min(len(body), DUMP_LIMIT), 16):
        row = body[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {letters}")
    if len(body) > DUMP_LIMIT:
        lines.append(f"… {counted(len(body) - DUMP_LIMIT, 'more byte')}; to see all of it add --body")
    return "\n".join(lines)
