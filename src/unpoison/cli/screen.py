"""How do things look on a terminal, and how elsewhere?

Nothing here interprets markup, emoji codes or links in what it is given. Tables fit the width of a terminal; in a pipe they
are as wide as they need to be, so that grep finds what it looks for.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from unpoison.deadletters.record import DeadLetter
from unpoison.escaping import one_line

ERROR_LIMIT = 300
PIPE_WIDTH = 2_000
WIDE = 110

Advance = Callable[[int, int], None]
"""Told (done so far, of how many)."""

_COLOURS = {"transient": "yellow", "throttled": "yellow", "invalid": "magenta", "crash": "bold red", "lost": "bold red"}


def console(*, stderr: bool = False) -> Console:
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def letter_table(letters: Sequence[DeadLetter], width: int, now: float | None = None) -> Table:
    """One line for each letter. On a narrow screen names are short, and the source is left to the id that starts with it."""
    is_wide = width >= WIDE
    moment = time.time() if now is None else now
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("ID", no_wrap=True, overflow="fold")
    table.add_column("WHEN", no_wrap=True)
    if is_wide:
        table.add_column("SOURCE", no_wrap=True)
    table.add_column("CLASSIFICATION" if is_wide else "CLASS", no_wrap=True)
    table.add_column("ERROR")  # the only one that may give way; its cells are cut and not wrapped
    table.add_column("ATTEMPTS" if is_wide else "ATT", no_wrap=True, justify="right")
    table.add_column("FINGERPRINT", no_wrap=True)
    for letter in letters:
        table.add_row(
            Text(one_line(letter.id)),
            Text(ago(moment - letter.last_failed_at), style="dim"),
            *([Text(one_line(letter.source))] if is_wide else []),
            Text(one_line(letter.classification), style=_COLOURS.get(letter.classification, "red")),
            Text(error_line(letter), no_wrap=True, overflow="ellipsis"),
            Text(str(letter.attempts)),
            Text(one_line(letter.fingerprint), style="dim"),
        )
    return table


def error_line(letter: DeadLetter) -> str:
    """Type and text of the error in one line. The module of the type is left out: its name tells enough here."""
    return one_line(f"{letter.error_type.rpartition('.')[2]}: {letter.error.strip()}".removesuffix(": "), ERROR_LIMIT)


def ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def moment(timestamp: float) -> str:
    """A time as the clock on the wall shows it, with its zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


@contextmanager
def progress(what: str) -> Iterator[Advance | None]:
    """A bar on standard error from the first advance on; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def advance(done: int, total: int) -> None:
        bar.start()  # what is short shows none
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()
