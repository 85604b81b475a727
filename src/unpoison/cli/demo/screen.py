"""What is seen while the demo runs? A table that lives on a terminal; lines that stay, everywhere else."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unpoison.cli.demo.account import STUCK, diagnosis
from unpoison.cli.demo.poison import Traffic, message_id
from unpoison.cli.demo.progress import PlainLoop, Snapshot
from unpoison.cli.screen import console
from unpoison.model.wording import one_line

Show = Callable[[Snapshot], None]

STYLES = {"dead": "bold red", "healed": "bold green", "discarded": "cyan", "waiting": "dim"}


def is_animated() -> bool:
    """Whether standard output is a terminal that can draw over itself, and whose owner has not asked for plain text."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


@contextmanager
def showing(orders: Traffic, *, to_stderr: bool) -> Iterator[Show]:
    """Gives what is to be called with each snapshot."""
    if to_stderr or not is_animated():
        yield Lines(orders, to_stderr=to_stderr)
        return
    screen = console()
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield lambda seen: live.update(picture(seen, orders, screen), refresh=True)


class Lines:
    """One line for each thing that happens, and nothing that moves."""

    def __init__(self, orders: Traffic, *, to_stderr: bool) -> None:
        self._orders, self._to_stderr = orders, to_stderr
        self._told: dict[int, str] = {}
        self._restarts, self._plain_down = 0, False

    def __call__(self, seen: Snapshot) -> None:
        for number, state in seen.states.items():
            if state in ("dead", "healed", "discarded") and self._told.get(number) != state:
                self._told[number] = state
                why = f", {one_line(diagnosis(seen.letters[number]))}" if number in seen.letters else ""
                self._say(seen, f"{message_id(number)} ({self._orders.poison[number].name}): {state}{why}")
        if seen.restarts > self._restarts:
            self._restarts = seen.restarts
            self._say(seen, f"the consumer was killed and started again: restart {seen.restarts}")
        if seen.plain.is_down and not self._plain_down:
            self._plain_down = True
            self._say(seen, f"plain loop: {plain_words(seen.plain, self._orders)}")

    def _say(self, seen: Snapshot, what: str) -> None:
        click.echo(f"{seen.seconds:5.1f} s  {what}", err=self._to_stderr)


def picture(seen: Snapshot, orders: Traffic, screen: Console) -> RenderableType:
    """Everything on one screen of 80 columns and 24 lines."""
    return Group(Text(), _bars(seen, orders, screen.width), _counts(seen, screen.width), Text(), _kinds(seen, orders))


def _bars(seen: Snapshot, orders: Traffic, width: int) -> Table:
    published, sound = len(orders.bodies), len(orders.bodies) - len(orders.poison)
    settled = seen.done + seen.dead + seen.discarded
    bar = max(10, width // 5)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=len("plain loop"))
    table.add_column(no_wrap=True, min_width=bar)
    table.add_column()
    table.add_row(
        Text("unpoison", style="bold"),
        ProgressBar(published, settled, width=bar, complete_style="green", finished_style="green"),
        Text(f"{settled:,} of {published:,} settled after {seen.seconds:.1f} s"),
    )
    table.add_row(
        Text("plain loop", style="bold"),
        ProgressBar(sound, seen.plain.done, width=bar, complete_style="yellow"),
        Text(plain_words(seen.plain, orders), style="red" if seen.plain.is_down else "", no_wrap=True, overflow="ellipsis"),
    )
    return table


def plain_words(plain: PlainLoop, orders: Traffic) -> str:
    done = f"{plain.done:,} done"
    if plain.at is None:
        return f"{done}, nothing left"
    if not plain.is_down and plain.idle_for <= STUCK:
        return done
    kind = orders.poison.get(plain.at)
    where = kind.name if kind else message_id(plain.at)
    return f"{done}, down after {plain.restarts + 1} deaths: {where}" if plain.is_down else f"{done}, stuck: {where}"


def _counts(seen: Snapshot, width: int) -> Text:
    counts = (
        ("done", seen.done, "green"),
        ("retrying", seen.retrying, "yellow"),
        ("dead", seen.dead, "red"),
        ("discarded", seen.discarded, "cyan"),
        ("waiting", seen.waiting, ""),
        ("restarts", seen.restarts, "magenta"),
        ("worker deaths" if width >= 90 else "deaths", seen.worker_deaths, "magenta"),
    )
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, number, style in counts:
        line.append(f"{name} ", "dim").append(f"{number:,}", f"bold {style}").append("  ")
    return line


def _kinds(seen: Snapshot, orders: Traffic) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("POISON", no_wrap=True, min_width=max(len(kind.name) for kind in orders.poison.values()))
    table.add_column("STATE", no_wrap=True, min_width=9)
    table.add_column("WHY")  # the only one that may give way; its cells are cut and not wrapped
    for number, kind in orders.poison.items():
        state, letter = seen.states[number], seen.letters.get(number)
        why = one_line(diagnosis(letter)) if letter else kind.story
        table.add_row(
            Text(kind.name),
            Text(state, style=STYLES.get(state, "yellow")),
            Text(why, style="" if letter else "dim", no_wrap=True, overflow="ellipsis"),
        )
    return table
