"""What is told at the end? The account, each poison with its diagnosis and its times, the plain loop, and what to try next."""

import shlex
import shutil
import sys
import textwrap
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unpoison.cli.demo.account import Account, Outcome, PlainResult, diagnosis
from unpoison.cli.demo.poison import KINDS
from unpoison.cli.demo.screen import STYLES
from unpoison.cli.demo.stage import SOURCE
from unpoison.cli.demo.timing import in_words
from unpoison.cli.screen import WIDE, console
from unpoison.model.wording import counted, one_line

WIDEST = 140

SHOWN, REPLAYED = "segfault", "bug in the handler"
"""The kinds whose letters the commands to try next are about."""


def tell(told: Account, *, where: str) -> None:
    screen = console()
    _tell_account(told, screen)
    screen.print(_outcomes(told, screen.width))
    _tell_meaning(told, screen)
    _tell_plain(told.plain, screen)
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
    orders = told.orders
    sums = (
        f"published {orders.published:,} = done {orders.done:,} + dead {orders.dead:,} "
        f"+ discarded {orders.discarded:,} + waiting {orders.waiting:,}, lost {orders.lost:,}"
    )
    screen.print(Text(f"\n{sums}", style="bold red" if orders.lost else "bold green"))
    died = counted(orders.worker_deaths, "worker process", "worker processes")
    again = f" {counted(orders.twice, 'order')} ran twice: that kill came before they could be settled." if orders.twice else ""
    _paragraph(
        f"In {orders.seconds:.1f} s. {died} died, and the consumer "
        f"itself was killed {counted(orders.restarts, 'time')} and started again.{again}",
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
        starts = [Text(str(outcome.starts))] if width >= WIDEST else []
        letter = [Text(outcome.letter.id if outcome.letter else "", style="dim")] if is_wide else []
        table.add_row(
            Text(outcome.kind.name),
            _diagnosis(outcome),
            *starts,
            *letter,
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
    usual = "" if told.orders.usual_gap is None else f" Between two orders of this run it was {in_words(told.orders.usual_gap)}."
    name = "OTHERS WAITED" if screen.width >= WIDE else "OTHERS"
    text = (
        f"TOOK: from the first start of its handler to its last word, with the waits between attempts; at once: refused before "
        f"the handler was started. {name}: the longest time, around its starts, in which no other order was started; –: it was "
        f"never started, or nobody waited any more.{usual}"
    )
    screen.print()
    _paragraph(text, screen, "dim")


def _tell_plain(plain: PlainResult, screen: Console) -> None:
    screen.print(Text(f"A plain loop: {plain.done:,} of {plain.sound:,} sound orders done", style="bold"))
    _paragraph(
        f"With the same messages, handler, memory limit and supervisor, in the same {plain.seconds:.1f} s. "
        f"{_what_stopped(plain)} {_remaining(plain)}",
        screen,
    )


def _remaining(plain: PlainResult) -> str:
    waits, lost = "waits" if plain.waiting == 1 else "wait", "is" if plain.lost == 1 else "are"
    return f"{counted(plain.waiting, 'sound order')} still {waits}, {plain.lost:,} {lost} lost."


def _what_stopped(plain: PlainResult) -> str:
    where = f"{plain.stuck_at} ({plain.stuck_on})" if plain.stuck_on else str(plain.stuck_at)
    if plain.is_down:
        times, restarts = counted(plain.restarts + 1, "time"), counted(plain.restarts, "restart")
        return f"{where} took it down {times}; after {restarts} it stays down."
    restarts = f" It was restarted {counted(plain.restarts, 'time')}." if plain.restarts else ""
    if plain.stuck_at is not None:
        return f"It stands still at {where}, and would for ever.{restarts}"
    return f"It was still at work.{restarts}"
