"""What do commands on consumers need: the store, the broker, and the name of the person who runs them?"""

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from unpoison.brokers import broker_for, sources_for
from unpoison.errors import ConfigError, UnpoisonError
from unpoison.port.broker import Broker
from unpoison.port.broker_url import masked
from unpoison.port.table_versions import NotCreated
from unpoison.store.choice import store_for
from unpoison.store.port import Store

STORE_EXAMPLE = "App(…, store='postgresql://db.example.com/shop')"
MOST_NAMES = 10


@contextmanager
def opened_store(url: str, broker: str, verb: str, may_create: Callable[[], None]) -> Iterator[Store]:
    """The store, to change something in it. `verb` says what needs one. Where it does not exist yet, it is created if
    `may_create` raises nothing: a mistyped path leaves no file behind."""
    if not url:
        raise ConfigError(
            f"{verb} needs a store that all consumers share, and {masked(broker)!r} has none: give the app one, as in "
            f"{STORE_EXAMPLE}."
        )
    with closing(store_for(url)) as store:
        try:
            store.open(create=False)
        except NotCreated:
            may_create()
            store.open()
        yield store


def check_exists(url: str, source: str, consumed: Collection[str]) -> None:
    """Refuse a source that is not among those consumed and that the broker does not have: it is a typing mistake."""
    known = set(consumed)
    if source in known:
        return
    try:
        with opened_broker(url, [source]):
            return
    except NotCreated as error:
        raise ConfigError(
            f"Nobody consumes {source!r}, and there is nothing of unpoison at {masked(url)!r}. Check the URL."
        ) from error
    except ConfigError as error:
        with suppress(UnpoisonError):  # not every broker can list them
            known.update(sources_for(url))
        if source in known or not known:  # then the broker knows better what is wrong
            raise ConfigError(f"Nobody consumes {source!r}, and it cannot be looked at: {_without_script(error)}") from error
    raise ConfigError(f"Nobody consumes {source!r}, and it does not exist at {masked(url)}. {did_you_mean(source, known)}")


def _without_script(error: ConfigError) -> str:
    """What a broker says, without the commands that would create what a mistyped name lacks."""
    said, _, script = str(error).partition("\n")
    return f"{said.rpartition('; to ')[0] or said.rstrip(':')}." if script else said


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The closest of the names that exist, else some of them."""
    if close := difflib.get_close_matches(name, known, 3):
        return f"Did you mean {' or '.join(map(repr, close))}?"
    shown = sorted(known)[:MOST_NAMES]
    more = ", …" if len(known) > len(shown) else ""
    return f"Its sources: {', '.join(map(repr, shown)) or 'none'}{more}"


@contextmanager
def opened_broker(url: str, sources: Sequence[str]) -> Iterator[Broker]:
    """The broker, to look at these sources. Creates nothing: one that does not exist is a ConfigError."""
    broker = broker_for(url)
    try:
        broker.open(sources, create=False)
        yield broker
    finally:
        broker.close()
