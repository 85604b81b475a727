"""Where are the dead letters of a source worked on?"""

from collections.abc import Sequence

from unpoison.brokers import dead_letters_for
from unpoison.port.broker import DeadLetters
from unpoison.store.letters.collected import CollectedLetters
from unpoison.store.letters.collector import Collector
from unpoison.store.letters.people import operator
from unpoison.store.letters.sql_letters import letters_for


def letters_of(
    url: str, store: str, source: str, *, create: bool = True, may_create: bool = True, redact: Sequence[str] = ()
) -> DeadLetters:
    """The dead letters of a source, opened: in this store if there is one, else in the DLQ of the broker. `may_create` is for the
    tables of the store, `redact` for what comes into it."""
    native = dead_letters_for(url, source, create=create)
    if not store:
        return native
    try:
        letters = letters_for(store, redact)
        letters.open(create=may_create)
    except BaseException:
        native.broker.close()
        raise
    who = operator()
    return CollectedLetters(native, letters, source, who, Collector(native, letters, source).collect)
