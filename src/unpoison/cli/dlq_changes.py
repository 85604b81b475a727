"""`unpoison dlq replay`, `discard` and `purge`: what becomes of dead letters.

What a filter means is chosen first, and then counted, asked about and changed by its ids.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import click

from unpoison.cli.chosen_letters import DLQ, Target, chosen_by, said_gone
from unpoison.cli.completion import where_option
from unpoison.cli.input_output import confirm, print_json
from unpoison.cli.screen import progress
from unpoison.cli.target import GivenTarget, target_options
from unpoison.deadletters import DiscardResult, DLQManager, ReplayResult, Selection
from unpoison.filters.filter import Filter
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Progress


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


class Change(NamedTuple):
    """What can be done to many letters, in the words of its command, its bar and its result."""

    verb: str
    title: str
    done: str
    call: Callable[[DLQManager, Progress, Selection], tuple[Sequence[str], Sequence[str]]]


def _replayed(manager: DLQManager, advance: Progress, chosen: Selection) -> tuple[Sequence[str], Sequence[str]]:
    result: ReplayResult = manager.replay_all(advance, chosen)
    return result.replayed, result.gone


def _discarded(manager: DLQManager, advance: Progress, chosen: Selection) -> tuple[Sequence[str], Sequence[str]]:
    result: DiscardResult = manager.discard_all(advance, chosen)
    return result.discarded, result.gone


REPLAY = Change("replay", "Replaying", "replayed", _replayed)
DISCARD = Change("discard", "Discarding", "discarded", _discarded)

DRY_RUN = click.option("--dry-run", is_flag=True, help="With --where: say which letters it would be, and change nothing.")


@click.command(
    "replay",
    epilog="\b\nExamples:\n"
    "  unpoison dlq replay orders-12 orders-15 --app shop:app\n"
    "  unpoison dlq replay --where 'error:timeout age>1h' --app shop:app\n"
    "  unpoison dlq replay --all --yes --url sqlite:///shop.db --source orders",
)
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@target_options
@click.option("--all", "everything", is_flag=True, help="Every letter of the source that waits now.")
@where_option("Every letter that waits and matches.")
@DRY_RUN
@click.option("--yes", is_flag=True, help="Do not ask before --all or --where. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"replayed": [ids], "gone": [ids]}.')
def replay(
    *,
    letter_ids: Sequence[str],
    given: GivenTarget,
    everything: bool,
    where: Filter | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send dead letters to their source again, with their attempts counted from the start.

    --all and --where take letters that wait now: one that fails again becomes a new dead letter and is not sent twice.
    """
    if [bool(letter_ids), everything, where is not None].count(True) != 1:
        raise click.UsageError("Give the ids of the letters to replay, or --where FILTER, or --all.")
    _check_dry_run(dry_run, where)
    chosen = given.opened()
    if where is not None:
        _change_meant(REPLAY, chosen, where, dry_run=dry_run, yes=yes, as_json=as_json)
    elif everything:
        _tell(REPLAY, *_replay_all(chosen, yes), as_json=as_json)
    else:
        _tell(REPLAY, *_changed(chosen, letter_ids, lambda dlq, ids: dlq.letters.replay(ids)), as_json=as_json)


def _check_dry_run(dry_run: bool, where: Filter | None) -> None:
    if dry_run and where is None:
        raise click.UsageError("--dry-run says which letters a filter means. Add --where FILTER.")


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


def _change_meant(change: Change, chosen: Target, where: Filter, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Change the waiting letters that match."""
    done: list[str] = []
    gone: list[str] = []
    with chosen_by(where, chosen) as (choice, look):
        if dry_run:
            _tell_dry_run(change.verb, str(choice), choice.ids, as_json=as_json)
            return
        if choice.ids and not yes:
            look.close()
            confirm(f"{change.verb.capitalize()} {choice}?", yes=False)
        for dlq, selection, _ in (meant for meant in choice.each if meant.ids):
            with long_work(change.title, change.done, dlq.source) as advance:
                changed, missed = change.call(dlq.manager, advance, selection)
            done += changed
            gone += missed
    _tell(change, done, gone, as_json=as_json, where=where)


def _tell_dry_run(verb: str, choice: str, ids: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({f"would_{verb}": ids})
    else:
        click.echo(f"It would {verb} {choice}. Nothing was changed.")


def _tell(change: Change, done: Sequence[str], gone: Sequence[str], *, as_json: bool, where: Filter | None = None) -> None:
    if as_json:
        print_json({change.done: done, "gone": gone})
    elif done or gone:
        click.echo(" ".join([f"{change.done.capitalize()} {_named(done)}.", *said_gone(gone)]))
    else:
        matching = "" if where is None else f" and match {one_line(str(where))}"
        click.echo(f"No dead letters are waiting{matching}; nothing was {'sent' if change is REPLAY else 'changed'}.")


def _named(ids: Sequence[str]) -> str:
    return one_line(ids[0]) if len(ids) == 1 else counted(len(ids), "dead letter")


@click.command(
    "discard",
    epilog="\b\nExamples:\n"
    "  unpoison dlq discard orders-12 --app shop:app\n"
    "  unpoison dlq discard orders-12 orders-15 --app shop:app --json\n"
    "  unpoison dlq discard --where 'class:invalid age>7d' --app shop:app",
)
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@target_options
@where_option("Every letter that waits and matches.")
@DRY_RUN
@click.option("--yes", is_flag=True, help="Do not ask before --where. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"discarded": [ids], "gone": [ids]}.')
def discard(
    *,
    letter_ids: Sequence[str],
    given: GivenTarget,
    where: Filter | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Mark dead letters as discarded. `ls --state discarded` and `show` still show them until the DLQ is purged."""
    if bool(letter_ids) == (where is not None):
        raise click.UsageError("Give the ids of the letters to discard, or --where FILTER.")
    _check_dry_run(dry_run, where)
    chosen = given.opened()
    if where is not None:
        _change_meant(DISCARD, chosen, where, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    discarded, gone = _changed(chosen, letter_ids, lambda dlq, ids: dlq.letters.remove(ids, keep_as="discarded"))
    _tell(DISCARD, discarded, gone, as_json=as_json)


@click.command(
    "purge",
    epilog="\b\nExamples:\n"
    "  unpoison dlq purge --app shop:app --source orders\n"
    "  unpoison dlq purge --history --where 'age>30d' --app shop:app\n"
    "  unpoison dlq purge --yes --url sqlite:///shop.db --source orders --json",
)
@target_options
@where_option("Only letters that match, whatever their state.")
@click.option("--history", is_flag=True, help="Only what was replayed or discarded before: nothing that waits.")
@DRY_RUN
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"purged": N, "history": N}.')
def purge(
    *,
    given: GivenTarget,
    where: Filter | None,
    history: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete all dead letters of a source for good: waiting, replayed and discarded. With --where those that match, and with
    --history none that waits.

    This cannot be undone. To keep a copy first: unpoison dlq ls --state all --json > letters.json
    """
    _check_dry_run(dry_run, where)
    chosen = given.opened()
    dlq = chosen.one()
    if where is not None:
        _purge_meant(chosen, where, history=history, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if not yes:
        counts = dlq.counts()
        waiting, past = counts["dead"] * (not history), counts["replayed"] + counts["discarded"]
        if waiting or past:
            what = _both(f"{counted(waiting, 'dead letter')} of {dlq.source!r}", past, history=history)
            confirm(f"Delete {what}, for good?", yes=False, typed=dlq.source)
    _purge(dlq, None, history=history, as_json=as_json)


def _both(waiting: str, past: int, *, history: bool) -> str:
    """What is to be deleted, in words."""
    before = "replayed or discarded before"
    return f"{counted(past, 'dead letter')} {before}" if history else f"{waiting}, and {past:,} {before}"


def _purge_meant(chosen: Target, where: Filter, *, history: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    with chosen_by(where, chosen, state=None) as (choice, look):
        (meant,) = choice.each
        past = {state: ids for state, ids in meant.selection.by_state.items() if state != "dead"}
        selection = replace(meant.selection, by_state=past) if history else meant.selection
        what = _both(str(choice), sum(map(len, past.values())), history=history)
        if dry_run:
            _tell_dry_run("purge", what, selection.ids, as_json=as_json)
            return
        if selection and not yes:
            look.close()
            confirm(f"Delete {what}, for good?", yes=False, typed=meant.dlq.source)
        _purge(meant.dlq, selection, history=history, as_json=as_json)


def _purge(dlq: DLQ, selection: Selection | None, *, history: bool, as_json: bool) -> None:
    with long_work("Purging", "purged", dlq.source) as advance:
        result = dlq.manager.purge(advance, selection, history=history)
    if as_json:
        print_json({"purged": result.purged, "history": result.history})
    else:
        click.echo(f"Deleted {_both(counted(result.purged, 'dead letter'), result.history, history=history)}.")
