"""`unpoison status`: what waits at the broker, who consumes it, and what stands in the way."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count

import click

from unpoison.cli.chosen_letters import NO_SOURCES
from unpoison.cli.fleet import check_exists
from unpoison.cli.input_output import print_json
from unpoison.cli.screen import console, moment
from unpoison.cli.source_status import InStore, SourceStatus, known_sources, look, statuses
from unpoison.cli.status_text import MOST_CONSUMERS, NEEDS_STORE, show
from unpoison.cli.target import Fleet, fleet, fleet_options
from unpoison.errors import StoreUnavailable, UnpoisonError
from unpoison.model.wording import visible
from unpoison.port.broker_url import masked, masked_text
from unpoison.port.table_versions import NotCreated
from unpoison.store.choice import store_for

WATCH_EVERY = 2.0
"""Seconds between two looks: consumers exchange with the store as often."""


@click.command(
    "status",
    epilog="\b\nExamples:\n"
    "  unpoison status --app shop:app --watch\n"
    "  unpoison status orders emails --url postgresql://db/shop\n"
    "  unpoison status --app shop:app --json",
)
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@fleet_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds, with rates, until q or Ctrl-C.")
def command(sources: Sequence[str], app: str | None, url: str | None, store: str | None, as_json: bool, watch: bool) -> None:
    """Show what waits at the broker, what is paused or down and why, and which consumers live. Changes nothing.

    Without SOURCE: all sources of the app or of the broker. OLDEST is for how long the message that waits longest has been ready;
    some brokers cannot tell. Without a store only the broker is asked. A source that is paused is not a failure: the exit code is
    1 only if the broker or the store cannot be asked.
    """
    if watch and as_json:
        raise click.UsageError("--json prints one document, and --watch never ends. Leave out one of them.")
    chosen = fleet(app, url, store)
    seen = partial(_seen, chosen, sources, is_given=store is not None)
    if watch and is_live():
        _watch_live(chosen, seen)
        return
    found, trouble = seen()
    if watch:
        _watch(chosen, seen)
        return
    if as_json:
        _print_json(chosen, found, trouble)
    else:
        _print(chosen, found)
    if trouble is not None:
        raise trouble


Seen = Callable[[], tuple[list[SourceStatus], StoreUnavailable | None]]


def is_live() -> bool:
    """Whether standard output is a terminal that can draw over itself."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _seen(chosen: Fleet, sources: Sequence[str], *, is_given: bool) -> tuple[list[SourceStatus], StoreUnavailable | None]:
    """How the sources are, and why the store does not say more if it is away. `is_given`: the store, by an option."""
    known, trouble = _in_store(chosen, is_given=is_given)
    for source in sources:
        check_exists(chosen.url, source, {*chosen.consumed, *(() if known is None else known.sources())})
    named = sources or chosen.consumed or known_sources(chosen.url, known)
    return statuses(chosen.url, named, known, time.time()), trouble


def _watch_live(chosen: Fleet, seen: Seen) -> None:
    """On a terminal. What cannot be asked at the first look ends it, as without --watch."""
    from unpoison.cli.status_watch import Look, Place, watch  # noqa: PLC0415 - only where it is used

    looks = count()

    def look() -> Look:
        is_first = next(looks) == 0
        try:
            return Look(*seen())
        except UnpoisonError as error:
            if is_first:
                raise
            return Look((), error)

    place = Place(chosen.url, chosen.store, chosen.shown, chosen.named, NO_SOURCES)
    watch(place, look, console(), WATCH_EVERY)


def _watch(chosen: Fleet, seen: Seen) -> None:
    """In a pipe, until Ctrl-C. A broker or a store that goes away is told, and asked again: it may be what is watched for."""
    with suppress(KeyboardInterrupt):
        while True:
            trouble: UnpoisonError | None
            try:
                found, trouble = seen()
            except UnpoisonError as error:
                found, trouble = [], error
            click.echo(f"{moment(time.time())}, again every {WATCH_EVERY:g} s until Ctrl-C\n")
            if found or trouble is None:
                _print(chosen, found)
            if trouble is not None:
                click.echo(f"\nError: {visible(masked_text(str(trouble)))}")
            click.echo()
            time.sleep(WATCH_EVERY)


def _in_store(chosen: Fleet, *, is_given: bool) -> tuple[InStore | None, StoreUnavailable | None]:
    """What the store knows, or why it cannot be asked: then the broker still can. `is_given`: by an option of this command."""
    if not chosen.store:
        return None, None
    try:
        with closing(store_for(chosen.store)) as store:
            store.open(create=False)
            return look(store), None
    except NotCreated:  # no consumer has used it yet
        if is_given:
            raise
        return InStore(), None
    except StoreUnavailable as error:
        return None, error


def _print(chosen: Fleet, found: Sequence[SourceStatus]) -> None:
    if not found:
        click.echo(f"No sources: {NO_SOURCES}")
        return
    show(console(), found, chosen.named)
    if not chosen.store:
        click.echo(f"\n{NEEDS_STORE}")
    consumers = sum(len(status.store.consumers) for status in found if status.store is not None)
    if consumers > MOST_CONSUMERS:
        click.echo(f"Showing {MOST_CONSUMERS} of {consumers:,} consumers. To see all: --json", err=True)


def _print_json(chosen: Fleet, found: Sequence[SourceStatus], trouble: StoreUnavailable | None) -> None:
    print_json(
        {
            "broker": chosen.shown,
            "store": masked(chosen.store) or None,
            "sources": [status.as_json() for status in found],
            "problem": None if trouble is None else masked_text(str(trouble)),
        }
    )
