"""How do things look on a terminal, and how elsewhere?

Nothing here interprets markup, emoji codes or links in what it is given. Tables fit the width of a terminal; in a pipe they
are as wide as they need to be, so that grep finds what it looks for.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from unpoison.model.dead_letter import DeadLetter
from unpoison.model.wording import one_line

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


def letter_table(letters: Sequence[DeadLetter], width: int, now: float | None = None) -> Table | Text:
    """One line for each letter. What there is no room for is left out, the error never: the source, to the id that starts with
    it, the fingerprint, the attempts, the time. Where not even that is enough the error has a line of its own."""
    moment = time.time() if now is None else now
    columns = {name: [column(letter, moment) for letter in letters] for name, column in _COLUMNS.items()}
    titles = {name: name if width >= WIDE else _SHORT.get(name, name) for name in columns}
    needed = {name: max(map(cell_len, [titles[name], *map(str, cells)])) for name, cells in columns.items()}
    needed["ERROR"] = min(needed["ERROR"], ERROR_LEAST)
    shown = dict.fromkeys(columns)
    for name in _FIRST_TO_GO:
        if sum(needed[each] + GAP for each in shown) - GAP > width or (name == "SOURCE" and width < WIDE):
            del shown[name]
    if sum(needed[each] + GAP for each in shown) - GAP > width:
        return _stacked([columns["ID"], columns["CLASSIFICATION"]], columns["ERROR"], width)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for name in shown:
        table.add_column(titles[name], no_wrap=name != "ERROR", justify="right" if name == "ATTEMPTS" else "left")
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
_FIRST_TO_GO = ("SOURCE", "FINGERPRINT", "ATTEMPTS", "WHEN")
_COLUMNS: dict[str, Callable[[DeadLetter, float], Text]] = {
    "ID": lambda letter, _: Text(one_line(letter.id)),
    "WHEN": lambda letter, now: Text(ago(now - letter.last_failed_at), style="dim"),
    "SOURCE": lambda letter, _: Text(one_line(letter.source)),
    "CLASSIFICATION": lambda letter, _: Text(one_line(letter.classification), style=_COLOURS.get(letter.classification, "red")),
    # The only one that may give way; its cells are cut and not wrapped.
    "ERROR": lambda letter, _: Text(error_line(letter), no_wrap=True, overflow="ellipsis"),
    "ATTEMPTS": lambda letter, _: Text(str(letter.attempts)),
    "FINGERPRINT": lambda letter, _: Text(one_line(letter.fingerprint), style="dim"),
}


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
