"""`unpoison dlq replay`, `discard` and `purge`: change dead letters."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from unpoison.cli.dlq.target import DLQ, Target, said_gone, target, target_options
from unpoison.cli.options import confirm
from unpoison.cli.output import print_json
from unpoison.cli.screen import progress
from unpoison.deadletters.manager import ReplayResult
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Progress

_BAR = {"replayed": "Replaying", "purged": "Purging"}


@contextmanager
def long_work(verb: str, source: str) -> Iterator[Progress]:
    """Shows a bar on a terminal. Ctrl-C says what was done until then; the rest is unchanged."""
    reached = [0, 0]
    try:
        with progress(_BAR[verb]) as advance:

            def tell(done: int, total: int) -> None:
                reached[:] = [done, total]
                if advance:
                    advance(done, total)

            yield tell
    except KeyboardInterrupt:
        done, total = reached
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
    result = _replay_all(chosen, yes) if everything else _replay(chosen, letter_ids)
    if as_json:
        print_json({"replayed": result.replayed, "gone": result.gone})
    else:
        click.echo(_told(result))


def _changed(
    chosen: Target, letter_ids: Sequence[str], change: Callable[[DLQ, Sequence[str]], Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Change these letters. Returns the ids of those that were changed, and of those that someone else changed first."""
    done: list[str] = []
    gone: list[str] = []
    with chosen.one_look():
        for dlq, asked in chosen.find_waiting(letter_ids):
            changed = set(change(dlq, asked))
            done += [id_ for id_ in asked if id_ in changed]
            gone += [id_ for id_ in asked if id_ not in changed]
    return done, gone


def _replay(chosen: Target, letter_ids: Sequence[str]) -> ReplayResult:
    sent, gone = _changed(chosen, letter_ids, lambda dlq, ids: dlq.letters.replay(ids))
    return ReplayResult(tuple(sent), tuple(gone))


def _replay_all(chosen: Target, yes: bool) -> ReplayResult:
    dlq = chosen.one()
    waiting = dlq.manager.count()
    if waiting:
        confirm(f"Send {counted(waiting, 'dead letter')} to {dlq.source!r} again?", yes=yes)
    with long_work("replayed", dlq.source) as advance:
        return dlq.manager.replay_all(advance)


def _told(result: ReplayResult) -> str:
    if not result.replayed and not result.gone:
        return "No dead letters are waiting; nothing was sent."
    text = (
        f"Replayed {one_line(result.replayed[0])}." if result.count == 1 else f"Replayed {counted(result.count, 'dead letter')}."
    )
    if result.gone:
        text += f" {said_gone(len(result.gone))}"
    return text


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
        what = one_line(discarded[0]) if len(discarded) == 1 else counted(len(discarded), "dead letter")
        click.echo(f"Discarded {what}.")
    if gone:
        click.echo(said_gone(len(gone)))


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
        question = (
            f"Delete {counted(waiting, 'dead letter')} of {dlq.source!r}, and {past:,} replayed or discarded before, for good?"
        )
        if waiting or past:
            confirm(question, yes=yes, typed=dlq.source)
    with long_work("purged", dlq.source) as advance:
        result = dlq.manager.purge(advance)
    if as_json:
        print_json({"purged": result.purged, "history": result.history})
    else:
        click.echo(f"Deleted {counted(result.purged, 'dead letter')}, and {result.history:,} replayed or discarded before.")
