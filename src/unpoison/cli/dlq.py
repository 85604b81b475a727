"""`unpoison dlq ls`, `count`, `groups` and `show`: what is in the DLQs? Nothing is changed."""

import heapq
import itertools
import sys
from collections.abc import Iterator, Sequence

import click

from unpoison.cli.chosen_letters import NO_SOURCES, Target, chosen_by
from unpoison.cli.completion import where_option
from unpoison.cli.input_output import print_json, print_json_array
from unpoison.cli.screen import console, group_table, how_to_reveal, letter_table, print_letter, progress, said_of_group
from unpoison.cli.target import GivenTarget, target_options
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.letter_group import LetterGroup, merged
from unpoison.model.verdict import STATES
from unpoison.model.wording import acts_on_terminals, one_line
from unpoison.port.broker import Progress

TABLE_LIMIT = 50
ALL = sys.maxsize


def how_many(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number from 1; ALL for "all"; None if the option was left out."""
    if value is None or (value.isdecimal() and int(value) > 0):
        return value if value is None else int(value)
    if value == "all":
        return ALL
    raise click.BadParameter(f"{value!r} is neither a number from 1 nor 'all'.", ctx, param)


@click.command(
    "ls",
    epilog="\b\nExamples:\n"
    "  unpoison dlq ls --app shop:app\n"
    "  unpoison dlq ls --app shop:app --where 'error:timeout age>1h' --limit 200\n"
    "  unpoison dlq ls --url sqlite:///shop.db --source orders --state all --json",
)
@target_options
@where_option("Only letters that match.")
@click.option(
    "--state", type=click.Choice([*STATES, "all"]), help="Letters in this state.  [default: dead, unless --where names a state]"
)
@click.option("--limit", callback=how_many, metavar="N|all", help=f"List at most N.  [default: {TABLE_LIMIT}; with --json all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of dead letters.")
def ls(
    given: GivenTarget,
    where: Filter | None,
    state: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List dead letters, oldest first. Changes nothing."""
    if where is not None and state == "dead":
        where = Filter.parse(f"state:dead ({where})")
    state = state or "dead"
    chosen = given.opened()
    if limit is None:
        limit = ALL if as_json else TABLE_LIMIT
    with progress("Reading") as advance:
        with chosen.one_look():  # only begun here: a slow reader of the output must not keep other operators waiting
            # The bar is for the table alone: an array is written while it is read.
            letters = itertools.islice(_letters(chosen, state, limit, where, None if as_json else advance), limit)
            begun = list(itertools.islice(letters, 1))
            total = 0 if limit == ALL or where is not None else _count(chosen, state)
        found = itertools.chain(begun, letters if as_json else list(letters))
    shown = print_json_array(letter.as_json() for letter in found) if as_json else _print_table(chosen, state, where, list(found))
    if total > shown > 0:
        click.echo(f"Showing {shown:,} of {total:,}. To see all: --limit all", err=True)
    elif where is not None and shown == limit:
        click.echo(f"Showing the first {shown:,} that match. To see all: --limit all", err=True)


def _print_table(chosen: Target, state: str, where: Filter | None, letters: Sequence[DeadLetter]) -> int:
    if letters:
        screen = console()
        screen.print(letter_table(letters, screen.width))
        return len(letters)
    what = f"No dead letters{'' if state in ('dead', 'all') or where else ' ' + state}"
    if not chosen.dlqs:
        click.echo(f"{what}: {NO_SOURCES}")
    else:
        click.echo(f"{what} in {chosen.names}." if where is None else f"{what} in {chosen.names} match {one_line(str(where))}")
    return 0


def _letters(chosen: Target, state: str, limit: int, where: Filter | None, advance: Progress | None) -> Iterator[DeadLetter]:
    """The letters of all DLQs by time; each DLQ is read page by page, only as far as needed."""
    wanted = None if state == "all" else state
    shares = _shares(advance, len(chosen.dlqs))
    each = (dlq.manager.letters(wanted, limit, where, share) for dlq, share in zip(chosen.dlqs, shares, strict=True))
    return heapq.merge(*each, key=lambda letter: letter.last_failed_at)


def _shares(advance: Progress | None, count: int) -> Sequence[Progress | None]:
    """One progress for each of several readings, which together are that of the command."""
    if advance is None:
        return [None] * count
    states = [(0, 0)] * count

    def share(number: int) -> Progress:
        def tell(done: int, total: int) -> None:
            states[number] = done, total
            advance(sum(done for done, _ in states), sum(total for _, total in states))

        return tell

    return [share(number) for number in range(count)]


def _count(chosen: Target, state: str) -> int:
    return sum(dlq.letters.count(each) for dlq in chosen.dlqs for each in (STATES if state == "all" else (state,)))


@click.command(
    "count",
    epilog="\b\nExamples:\n"
    "  unpoison dlq count --app shop:app\n"
    "  unpoison dlq count --app shop:app --where 'error:timeout age>1h'\n"
    "  unpoison dlq count --url sqlite:///shop.db --json",
)
@target_options
@where_option("Only letters that match.")
@click.option("--json", "as_json", is_flag=True, help='Print {"SOURCE": {"dead": N, "replayed": N, "discarded": N}}.')
def count(given: GivenTarget, where: Filter | None, as_json: bool) -> None:
    """Count dead letters by source: waiting, replayed and discarded. Changes nothing."""
    chosen = given.opened()
    if where is None:
        counts = {dlq.source: dlq.counts() for dlq in chosen.dlqs}
    else:
        with chosen_by(where, chosen, state=None) as (choice, _):
            found = {meant.dlq.source: meant.selection.by_state for meant in choice.each}
        counts = {name: {state: len(by_state.get(state, ())) for state in STATES} for name, by_state in found.items()}
    if as_json:
        print_json(counts)
        return
    if not counts:
        click.echo(f"No dead letters: {NO_SOURCES}")
    for name, by_state in counts.items():
        click.echo(f"{one_line(name)}: " + ", ".join(f"{number:,} {state}" for state, number in by_state.items()))


@click.command(
    "groups",
    epilog="\b\nExamples:\n  unpoison dlq groups --app shop:app\n  unpoison dlq groups --app shop:app --where 'age<1h' --json",
)
@target_options
@where_option("Only letters that match.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of groups.")
def groups(given: GivenTarget, where: Filter | None, as_json: bool) -> None:
    """Count the dead letters that wait by what failed: one group for each fingerprint, the largest first.

    Each group shows the error of the letter that failed last. To see the letters: unpoison dlq ls --where group:3f9a
    """
    chosen = given.opened()
    with progress("Reading") as advance:
        shares = _shares(advance, len(chosen.dlqs))
        each = (dlq.manager.groups(where, share) for dlq, share in zip(chosen.dlqs, shares, strict=True))
        found = merged(group for groups in each for group in groups)
    if as_json:
        print_json([group.as_json() for group in found])
    elif found:
        screen = console()
        screen.print(group_table(found, screen.width))
        said = [said_of_group(group.fingerprint, group.state, group.owner, group.note) for group in found if _is_said(group)]
        if said:
            click.echo("\n".join(["", *said]))
    else:
        _print_table(chosen, "dead", where, [])


def _is_said(group: LetterGroup) -> bool:
    """Whether people have said anything about it, in a store."""
    return bool(group.owner or group.note) or group.state not in (None, "open")


@click.command(
    "show",
    epilog="\b\nExamples:\n"
    "  unpoison dlq show orders-12 --app shop:app\n"
    "  unpoison dlq show orders-12 --app shop:app --json\n"
    "  unpoison dlq show orders-12 --app shop:app --body > body.bin",
)
@click.argument("letter_id", metavar="ID")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print the letter as one JSON object.")
@click.option("--body", "only_body", is_flag=True, help="Write only the body to standard output, byte for byte.")
def show(letter_id: str, given: GivenTarget, as_json: bool, only_body: bool) -> None:
    """Show everything known about one dead letter: what happened, body, headers, earlier attempts, traceback.

    ID is the letter's own id, as `ls` shows it, or the id of its message.
    """
    if as_json and only_body:
        raise click.UsageError("--json and --body both write to standard output. Give one of them.")
    chosen = given.opened()
    with chosen.one_look():
        letter = chosen.find(letter_id)[1]
    if only_body:
        _write(letter)
    elif as_json:
        print_json(letter.as_json())
    else:
        print_letter(letter, console())


def _write(letter: DeadLetter) -> None:
    if sys.stdout.isatty() and acts_on_terminals(letter.body):
        raise click.ClickException(
            f"The body of {letter.id!r} contains bytes that a terminal would act on. Write it to a file: add > body.bin"
        )
    if letter.redaction is not None:
        click.echo(f"The body is redacted. To see it as it was: {how_to_reveal(letter)}", err=True)
    sys.stdout.buffer.write(letter.body)
    sys.stdout.buffer.flush()
