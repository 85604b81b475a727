"""How deep are sources, and how many dead letters wait? Read from a broker and a store, over a connection of its own each."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from unpoison.brokers import broker_for
from unpoison.observing.polling import EVERY, Polled
from unpoison.port.at_broker import AtBroker, deleted_after, lag, oldest
from unpoison.port.broker import Broker, TellsOldest
from unpoison.port.table_versions import NotCreated
from unpoison.store.choice import store_for
from unpoison.store.port import Store

ASK_LIMIT_EVERY = 3_600.0
"""Seconds between two questions for how long a broker keeps messages."""


class BrokerDepths(Polled[AtBroker]):
    """How deep sources are, over a connection of its own."""

    def __init__(self, url: str, every: float = EVERY, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__("depths", every, monotonic)
        self._url = url
        self._broker: Broker | None = None
        self._opened: Sequence[str] = ()
        self._limits: dict[str, tuple[float, float | None]] = {}
        """By source: until when it is not asked again, and after how many seconds a message is deleted there."""

    def _is_connected(self) -> bool:
        return self._broker is not None and self._opened == self._read

    def _connect(self, sources: Sequence[str]) -> None:
        self._let_go()
        self._broker, self._opened = broker_for(self._url), sources
        self._broker.open(sources, create=False)

    def _ask(self, sources: Sequence[str]) -> Mapping[str, AtBroker]:
        broker = self._broker
        return {} if broker is None else {source: self._ask_one(broker, source) for source in sources}

    def _ask_one(self, broker: Broker, source: str) -> AtBroker:
        depth, waits = broker.depth(source), oldest(broker, source)
        if waits is None and not depth.ready and isinstance(broker, TellsOldest):
            waits = 0.0
        return AtBroker(depth, waits, self._limit(broker, source), lag(broker, depth))

    def _limit(self, broker: Broker, source: str) -> float | None:
        """It hardly ever changes."""
        until, limit = self._limits.get(source, (float("-inf"), None))
        if self._monotonic() >= until:
            limit = deleted_after(broker, source)
            self._limits[source] = self._monotonic() + ASK_LIMIT_EVERY, limit
        return limit

    def _let_go(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()


class StoredLetters(Polled[int]):
    """How many dead letters wait in a store, over a connection of its own."""

    def __init__(self, url: str, every: float = EVERY, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__("letters", every, monotonic)
        self._url = url
        self._store: Store | None = None

    def _is_connected(self) -> bool:
        return self._store is not None

    def _connect(self, sources: Sequence[str]) -> None:
        self._let_go()
        self._store = store_for(self._url)
        with suppress(NotCreated):
            self._store.open(create=False)
            return
        self._store = None

    def _ask(self, sources: Sequence[str]) -> Mapping[str, int]:
        found = {} if self._store is None else self._store.waiting_letters()
        return {source: found.get(source, 0) for source in sources}

    def _let_go(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
