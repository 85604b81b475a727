"""Which dead letters are there?"""

import heapq
import itertools
import sys
from collections.abc import Iterator, Sequence

import click

from unpoison.cli.dlq.target import NO_SOURCES, Target, target, target_options
from unpoison.cli.json_output import print_json_array
from unpoison.cli.screen import console, letter_table
from unpoison.deadletters.manager import STATES
from unpoison.model.dead_letter import DeadLetter

TABLE_LIMIT = 50
ALL = sys.maxsize


def how_many(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number from 1; ALL for "all"; None where nothing was said."""
    if value is None or (value.isdecimal() and int(value) > 0):
        return value if value is None else int(value)
    if value == "all":
        return ALL
    raise click.BadParameter(f"{value!r} is neither a number from 1 nor 'all'.", ctx, param)


@click.command(
    "ls",
    epilog="\b\nExamples:\n"
    "  unpoison dlq ls --app shop:app\n"
    "  unpoison dlq ls --app shop:app --source orders --state all --limit 200\n"
    "  unpoison dlq ls --url sqlite:///shop.db --json",
)
@target_options
@click.option("--state", type=click.Choice([*STATES, "all"]), default="dead", show_default=True, help="Which letters.")
@click.option("--limit", callback=how_many, metavar="N|all", help=f"At most so many.  [default: {TABLE_LIMIT}; with --json all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of dead letters.")
def command(app: str | None, url: str | None, source: str | None, state: str, limit: int | None, as_json: bool) -> None:
    """List dead letters, oldest first. Looking changes nothing."""
    chosen = target(app, url, source)
    if limit is None:
        limit = ALL if as_json else TABLE_LIMIT
    with chosen.one_look():  # only begun here: whoever reads the output slowly keeps no other operator waiting
        letters = itertools.islice(_letters(chosen, state, limit), limit)
        begun = list(itertools.islice(letters, 1))
        total = 0 if limit == ALL else _count(chosen, state)
    found = itertools.chain(begun, letters)
    shown = print_json_array(letter.as_json() for letter in found) if as_json else _print_table(chosen, state, list(found))
    if total > shown > 0:
        click.echo(f"Showing {shown:,} of {total:,}. To see all: --limit all", err=True)


def _print_table(chosen: Target, state: str, letters: Sequence[DeadLetter]) -> int:
    """Returns how many there are in it."""
    if letters:
        screen = console()
        screen.print(letter_table(letters, screen.width))
    else:
        what = f"No dead letters{'' if state in ('dead', 'all') else ' ' + state}"
        click.echo(f"{what} in {_names(chosen)}." if chosen.dlqs else f"{what}: {NO_SOURCES}")
    return len(letters)


def _letters(chosen: Target, state: str, limit: int) -> Iterator[DeadLetter]:
    """Those of all DLQs, in the order they came; each DLQ is read page by page and only as far as needed."""
    wanted = None if state == "all" else state
    each = (dlq.manager.letters(wanted, limit) for dlq in chosen.dlqs)
    return heapq.merge(*each, key=lambda letter: letter.last_failed_at)


def _count(chosen: Target, state: str) -> int:
    return sum(dlq.letters.count(each) for dlq in chosen.dlqs for each in (STATES if state == "all" else (state,)))


def _names(chosen: Target) -> str:
    return ", ".join(repr(dlq.source) for dlq in chosen.dlqs)
