"""Where are the dead letters of a source worked on?"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from unpoison.brokers import dead_letters_for, foreign_dlq
from unpoison.port.broker import DeadLetters
from unpoison.port.broker_url import dlqs_of
from unpoison.store.letters.collected import CollectedLetters
from unpoison.store.letters.collector import Collector
from unpoison.store.letters.people import operator
from unpoison.store.letters.scopes import OfPlace, OfSource, Scope
from unpoison.store.letters.sql_letters import letters_for


def letters_of(
    url: str, store: str, source: str, *, create: bool = True, may_create: bool = True, redact: Sequence[str] = ()
) -> DeadLetters:
    """The dead letters of a source, opened: in this store if there is one, else in the DLQ of the broker. `may_create` is for the
    tables of the store, `redact` for what comes into it."""
    native = dead_letters_for(url, source, create=create)
    place = dlqs_of(url).get(source, "")
    moved = Collecting(source, place, OfSource(source), redact)
    return _collected(native, store, moved, may_create=may_create) if store else native


def letters_at(url: str, store: str, dlq: str, accepted: Collection[str] = (), *, redact: Sequence[str] = ()) -> DeadLetters:
    """The letters in a DLQ by its name, whoever made it: in this store if there is one, else where they are."""
    native = foreign_dlq(url, dlq, accepted)
    return _collected(native, store, Collecting(dlq, dlq, OfPlace(dlq), redact), may_create=True) if store else native


class Collecting(NamedTuple):
    """What is moved into a store, and which letters of that are meant then."""

    source: str
    place: str
    scope: Scope
    redact: Sequence[str]
    """What of it does not come into the store in the clear."""


def _collected(native: DeadLetters, store: str, moved: Collecting, *, may_create: bool) -> DeadLetters:
    try:
        letters = letters_for(store, moved.redact)
        letters.open(create=may_create)
    except BaseException:
        native.broker.close()
        raise
    collector = Collector(native, letters, moved.source, moved.place)
    return CollectedLetters(native, letters, moved.scope, operator(), collector.collect)
