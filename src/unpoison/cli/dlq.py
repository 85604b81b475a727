"""`unpoison dlq`: ls, count and show read dead letters; replay, discard and purge change them."""

import heapq
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from unpoison.cli.input_output import confirm, print_json, print_json_array
from unpoison.cli.screen import console, letter_table, print_letter, progress
from unpoison.cli.target import DLQ, NO_SOURCES, Target, said_gone, target, target_options
from unpoison.deadletters import STATES
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.wording import acts_on_terminals, counted, one_line
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
    "  unpoison dlq ls --app shop:app --source orders --state all --limit 200\n"
    "  unpoison dlq ls --url sqlite:///shop.db --json",
)
@target_options
@click.option("--state", type=click.Choice([*STATES, "all"]), default="dead", show_default=True, help="Letters in this state.")
@click.option("--limit", callback=how_many, metavar="N|all", help=f"List at most N.  [default: {TABLE_LIMIT}; with --json all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of dead letters.")
def ls(app: str | None, url: str | None, source: str | None, state: str, limit: int | None, as_json: bool) -> None:
    """List dead letters, oldest first. Changes nothing."""
    chosen = target(app, url, source)
    if limit is None:
        limit = ALL if as_json else TABLE_LIMIT
    with chosen.one_look():  # only begun here: a slow reader of the output must not keep other operators waiting
        letters = itertools.islice(_letters(chosen, state, limit), limit)
        begun = list(itertools.islice(letters, 1))
        total = 0 if limit == ALL else _count(chosen, state)
    found = itertools.chain(begun, letters)
    shown = print_json_array(letter.as_json() for letter in found) if as_json else _print_table(chosen, state, list(found))
    if total > shown > 0:
        click.echo(f"Showing {shown:,} of {total:,}. To see all: --limit all", err=True)


def _print_table(chosen: Target, state: str, letters: Sequence[DeadLetter]) -> int:
    if letters:
        screen = console()
        screen.print(letter_table(letters, screen.width))
    else:
        what = f"No dead letters{'' if state in ('dead', 'all') else ' ' + state}"
        click.echo(f"{what} in {chosen.names}." if chosen.dlqs else f"{what}: {NO_SOURCES}")
    return len(letters)


def _letters(chosen: Target, state: str, limit: int) -> Iterator[DeadLetter]:
    """The letters of all DLQs by time; each DLQ is read page by page, only as far as needed."""
    wanted = None if state == "all" else state
    each = (dlq.manager.letters(wanted, limit) for dlq in chosen.dlqs)
    return heapq.merge(*each, key=lambda letter: letter.last_failed_at)


def _count(chosen: Target, state: str) -> int:
    return sum(dlq.letters.count(each) for dlq in chosen.dlqs for each in (STATES if state == "all" else (state,)))


@click.command(
    "count",
    epilog="\b\nExamples:\n  unpoison dlq count --app shop:app\n  unpoison dlq count --url sqlite:///shop.db --json",
)
@target_options
@click.option("--json", "as_json", is_flag=True, help='Print {"SOURCE": {"dead": N, "replayed": N, "discarded": N}}.')
def count(app: str | None, url: str | None, source: str | None, as_json: bool) -> None:
    """Count dead letters by source: waiting, replayed and discarded. Changes nothing."""
    counts = {dlq.source: dlq.counts() for dlq in target(app, url, source).dlqs}
    if as_json:
        print_json(counts)
        return
    if not counts:
        click.echo(f"No dead letters: {NO_SOURCES}")
    for name, found in counts.items():
        click.echo(f"{one_line(name)}: " + ", ".join(f"{number:,} {state}" for state, number in found.items()))


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
def show(letter_id: str, app: str | None, url: str | None, source: str | None, as_json: bool, only_body: bool) -> None:
    """Show everything known about one dead letter: what happened, body, headers, earlier attempts, traceback.

    ID is the letter's own id, as `ls` shows it, or the id of its message.
    """
    if as_json and only_body:
        raise click.UsageError("--json and --body both write to standard output. Give one of them.")
    chosen = target(app, url, source)
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
    sys.stdout.buffer.write(letter.body)
    sys.stdout.buffer.flush()


# Commands that change dead letters.


@contextmanager
def long_work(title: str, verb: str, source: str) -> Iterator[Progress]:
    """Shows a bar on a terminal. Ctrl-C says what was done until then; the rest is unchanged."""
    done = total = 0
    try:
        with progress(title) as advance:

            def tell(now_done: int, of: int) -> None:
                nonlocal done, total
                done, total = now_done, of
                if advance:
                    advance(done, total)

            yield tell
    except KeyboardInterrupt:
        far = (
            f"{done:,} of {counted(total, 'dead letter')} of {source!r} {'was' if done == 1 else 'were'} {verb}"
            if total
            else f"None of {source!r} was {verb}"
        )
        click.echo(
            f"Stopped: {far}. Those in progress are either {verb} or still there; the rest is untouched. To go on, run it again.",
            err=True,
        )
        raise


@click.command(
    "replay",
    epilog="\b\nExamples:\n"
    "  unpoison dlq replay orders-12 orders-15 --app shop:app\n"
    "  unpoison dlq replay --all --app shop:app --source orders\n"
    "  unpoison dlq replay --all --yes --url sqlite:///shop.db --source orders",
)
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@target_options
@click.option("--all", "everything", is_flag=True, help="Every letter of the source that waits now.")
@click.option("--yes", is_flag=True, help="Do not ask before --all. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"replayed": [ids], "gone": [ids]}.')
def replay(
    letter_ids: Sequence[str], app: str | None, url: str | None, source: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """Send dead letters to their source again, with their attempts counted from the start.

    --all takes the letters that wait now: one that fails again becomes a new dead letter and is not sent twice.
    """
    if bool(letter_ids) == everything:
        raise click.UsageError("Give the ids of the letters to replay, or --all.")
    chosen = target(app, url, source)
    if everything:
        replayed, gone = _replay_all(chosen, yes)
    else:
        replayed, gone = _changed(chosen, letter_ids, lambda dlq, ids: dlq.letters.replay(ids))
    if as_json:
        print_json({"replayed": replayed, "gone": gone})
    elif replayed or gone:
        click.echo(" ".join([f"Replayed {_named(replayed)}.", *said_gone(gone)]))
    else:
        click.echo("No dead letters are waiting; nothing was sent.")


def _changed(
    chosen: Target, letter_ids: Sequence[str], change: Callable[[DLQ, Sequence[str]], Sequence[str]]
) -> tuple[Sequence[str], Sequence[str]]:
    """Change these letters. Returns the ids of those that were changed, and of those that someone else changed first."""
    done: list[str] = []
    gone: list[str] = []
    with chosen.one_look():
        for dlq, asked in chosen.find_waiting(letter_ids):
            changed = set(change(dlq, asked))
            done += [id_ for id_ in asked if id_ in changed]
            gone += [id_ for id_ in asked if id_ not in changed]
    return done, gone


def _replay_all(chosen: Target, yes: bool) -> tuple[Sequence[str], Sequence[str]]:
    dlq = chosen.one()
    waiting = dlq.manager.count()
    if waiting:
        confirm(f"Send {counted(waiting, 'dead letter')} to {dlq.source!r} again?", yes=yes)
    with long_work("Replaying", "replayed", dlq.source) as advance:
        result = dlq.manager.replay_all(advance)
    return result.replayed, result.gone


def _named(ids: Sequence[str]) -> str:
    return one_line(ids[0]) if len(ids) == 1 else counted(len(ids), "dead letter")


@click.command(
    "discard",
    epilog="\b\nExamples:\n"
    "  unpoison dlq discard orders-12 --app shop:app\n"
    "  unpoison dlq discard orders-12 orders-15 --app shop:app --json",
)
@click.argument("letter_ids", metavar="ID...", nargs=-1, required=True)
@target_options
@click.option("--json", "as_json", is_flag=True, help='Print {"discarded": [ids], "gone": [ids]}.')
def discard(letter_ids: Sequence[str], app: str | None, url: str | None, source: str | None, as_json: bool) -> None:
    """Mark dead letters as discarded. `ls --state discarded` and `show` still show them until the DLQ is purged."""
    discarded, gone = _changed(
        target(app, url, source), letter_ids, lambda dlq, ids: dlq.letters.remove(ids, keep_as="discarded")
    )
    if as_json:
        print_json({"discarded": discarded, "gone": gone})
        return
    if discarded:
        click.echo(f"Discarded {_named(discarded)}.")
    for line in said_gone(gone):
        click.echo(line)


@click.command(
    "purge",
    epilog="\b\nExamples:\n"
    "  unpoison dlq purge --app shop:app --source orders\n"
    "  unpoison dlq purge --yes --url sqlite:///shop.db --source orders --json",
)
@target_options
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"purged": N, "history": N}.')
def purge(app: str | None, url: str | None, source: str | None, yes: bool, as_json: bool) -> None:
    """Delete all dead letters of a source for good: waiting, replayed and discarded.

    This cannot be undone. To keep a copy first: unpoison dlq ls --state all --json > letters.json
    """
    dlq = target(app, url, source).one()
    if not yes:
        counts = dlq.counts()
        waiting, past = counts["dead"], counts["replayed"] + counts["discarded"]
        if waiting or past:
            what = f"{counted(waiting, 'dead letter')} of {dlq.source!r}, and {past:,} replayed or discarded before"
            confirm(f"Delete {what}, for good?", yes=False, typed=dlq.source)
    with long_work("Purging", "purged", dlq.source) as advance:
        result = dlq.manager.purge(advance)
    if as_json:
        print_json({"purged": result.purged, "history": result.history})
    else:
        click.echo(f"Deleted {counted(result.purged, 'dead letter')}, and {result.history:,} replayed or discarded before.")
