"""What the demo prints while it runs (a live table on a terminal, lines elsewhere) and at the end."""

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unpoison.cli.demo.account import Account, Outcome, diagnosis, in_words
from unpoison.cli.demo.shop import KINDS, Traffic, message_id
from unpoison.cli.demo.stage import SOURCE, PlainLoop, Snapshot
from unpoison.cli.screen import WIDE, console
from unpoison.model.wording import counted, one_line

Show = Callable[[Snapshot], None]

STYLES = {"dead": "bold red", "healed": "bold green", "discarded": "cyan", "waiting": "dim"}


def is_animated() -> bool:
    """Whether standard output is a terminal that can draw over itself, and whose owner has not asked for plain text."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


@contextmanager
def showing(orders: Traffic, *, to_stderr: bool) -> Iterator[Show]:
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
            self._say(seen, f"plain loop: {plain_words(seen)}")

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
        Text(plain_words(seen), style="red" if seen.plain.is_down else "", no_wrap=True, overflow="ellipsis"),
    )
    return table


def plain_words(seen: Snapshot) -> str:
    plain, done = seen.plain, f"{seen.plain.done:,} done"
    if seen.is_plain_over:
        return f"{done}, nothing left"
    if plain.stuck_at is None:
        return done
    where = plain.stuck_on or plain.stuck_at
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
    table.add_column("WHY")  # the only column that may shrink; its cells are cut, not wrapped
    for number, kind in orders.poison.items():
        state, letter = seen.states[number], seen.letters.get(number)
        why = one_line(diagnosis(letter)) if letter else kind.story
        table.add_row(
            Text(kind.name),
            Text(state, style=STYLES.get(state, "yellow")),
            Text(why, style="" if letter else "dim", no_wrap=True, overflow="ellipsis"),
        )
    return table


# At the end: the account, each poison with its diagnosis and its times, the plain loop, and what to try next.


WIDEST = 140

SHOWN, REPLAYED = "segfault", "bug in the handler"
"""The kinds whose letters the commands to try next are about."""


def tell(told: Account, *, where: str) -> None:
    screen = console()
    _tell_account(told, screen)
    screen.print(_outcomes(told, screen.width))
    _tell_meaning(told, screen)
    _tell_plain(told.plain_loop, screen)
    click.echo(f"{where} Try next:\n")
    for command in commands(told):
        click.echo(f"  {command}")


def commands(told: Account) -> list[str]:
    """List, look at one, send one again: with ids that are there."""
    ids = {outcome.kind.name: outcome.letter.id for outcome in told.poison if outcome.letter}
    fallback = next(iter(ids.values()), f"{SOURCE}-1")
    target = f"--url {shlex.quote(told.url)}"
    program = this_program()
    return [
        f"{program} dlq ls {target}",
        f"{program} dlq show {ids.get(SHOWN, fallback)} {target}",
        f"{program} dlq replay {ids.get(REPLAYED, fallback)} {target}",
    ]


def this_program() -> str:
    """What to type to run this very unpoison again, from the same folder."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m unpoison"
    found = shutil.which(called.name)
    return called.name if found and called.exists() and Path(found).samefile(called) else shlex.quote(str(called))


def _tell_account(told: Account, screen: Console) -> None:
    sums = (
        f"published {told.published:,} = done {told.done:,} + dead {told.dead:,} "
        f"+ discarded {told.discarded:,} + waiting {told.waiting:,}, lost {told.lost:,}"
    )
    screen.print(Text(f"\n{sums}", style="bold red" if told.lost else "bold green"))
    died = counted(told.worker_deaths, "worker process", "worker processes")
    again = f" {counted(told.twice, 'order')} ran twice: that kill came before they could be settled." if told.twice else ""
    _paragraph(
        f"In {told.seconds:.1f} s. {died} died, and the consumer "
        f"itself was killed {counted(told.restarts, 'time')} and started again.{again}",
        screen,
    )


def _paragraph(text: str, screen: Console, style: str = "") -> None:
    """With a blank line below. In a pipe too its lines are short enough to be read."""
    screen.print(Text(textwrap.fill(text, min(screen.width, 110), break_on_hyphens=False), style), Text(), sep="\n")


def _outcomes(told: Account, width: int) -> Table:
    is_wide = width >= WIDE
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("POISON", no_wrap=True)
    table.add_column("DIAGNOSIS")
    if width >= WIDEST:
        table.add_column("STARTS", no_wrap=True, justify="right")
    if is_wide:
        table.add_column("LETTER", no_wrap=True)
    table.add_column("TOOK", no_wrap=True, justify="right")
    table.add_column("OTHERS" if not is_wide else "OTHERS WAITED", no_wrap=True, justify="right")
    for outcome in sorted(told.poison, key=lambda outcome: KINDS.index(outcome.kind)):
        table.add_row(
            Text(outcome.kind.name),
            _diagnosis(outcome),
            *([Text(str(outcome.starts))] if width >= WIDEST else []),
            *([Text(outcome.letter.id if outcome.letter else "", style="dim")] if is_wide else []),
            Text("at once" if outcome.took is None and outcome.letter else _duration(outcome.took)),
            Text(_duration(outcome.others_waited)),
        )
    return table


def _diagnosis(outcome: Outcome) -> Text:
    state, _, why = one_line(diagnosis(outcome.letter), 90).partition(": ") if outcome.letter else ("", "", outcome.kind.story)
    return Text.assemble((state or outcome.state, STYLES.get(outcome.state, "yellow")), f": {why}")


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else in_words(seconds)


def _tell_meaning(told: Account, screen: Console) -> None:
    usual = "" if told.usual_gap is None else f" The usual time between two orders was {in_words(told.usual_gap)}."
    name = "OTHERS WAITED" if screen.width >= WIDE else "OTHERS"
    text = (
        f"TOOK: from the first start of its handler to the final verdict, with the waits between attempts; at once: refused "
        f"before the handler started. {name}: the longest time, around its starts, in which no other order was started; –: it "
        f"was never started, or no other order was waiting.{usual}"
    )
    screen.print()
    _paragraph(text, screen, "dim")


def _tell_plain(plain: PlainLoop, screen: Console) -> None:
    waits, lost = "waits" if plain.waiting == 1 else "wait", "is" if plain.lost == 1 else "are"
    screen.print(Text(f"A plain loop: {plain.done:,} of {plain.sound:,} sound orders done", style="bold"))
    _paragraph(
        f"With the same messages, handler, memory limit and supervisor, in the same {plain.seconds:.1f} s. "
        f"{_what_stopped(plain)} {counted(plain.waiting, 'sound order')} still {waits}, {plain.lost:,} {lost} lost.",
        screen,
    )


def _what_stopped(plain: PlainLoop) -> str:
    where = f"{plain.stuck_at} ({plain.stuck_on})" if plain.stuck_on else str(plain.stuck_at)
    if plain.is_down:
        times, restarts = counted(plain.restarts + 1, "time"), counted(plain.restarts, "restart")
        return f"{where} took it down {times}; after {restarts} it stays down."
    restarts = f" It was restarted {counted(plain.restarts, 'time')}." if plain.restarts else ""
    if plain.stuck_at is not None:
        return f"It is stuck at {where} for ever.{restarts}"
    return f"It was still working.{restarts}"
