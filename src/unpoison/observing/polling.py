"""Asks a broker or a store again and again, in a thread of its own, and keeps what it said last.

Nobody waits for an answer: who wants one takes the last, with its age. An answer is given out for a while only, so that what
cannot be read any more does not look as it was.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from unpoison.brokers import broker_for
from unpoison.errors import UnpoisonError
from unpoison.port.at_broker import AtBroker, deleted_after, lag, oldest
from unpoison.port.broker import Broker, TellsOldest
from unpoison.port.table_versions import NotCreated
from unpoison.reporting.consumer_state import ConsumerView
from unpoison.store.choice import store_for
from unpoison.store.port import Store

log = logging.getLogger("unpoison")

EVERY = 15.0
"""Seconds between two reads of one broker."""
SHARE = 0.05
"""No more of the time than this is spent reading: where a read is slow, the next one comes later."""
FRESH_FOR = 4
"""Intervals after which an answer is no longer given out. One read that fails does not make a graph blink."""
SOON = 0.5
"""Seconds between two looks whether another source can be read."""
ASK_LIMIT_EVERY = 3_600.0
END_WITHIN = 2.0

Answer = TypeVar("Answer")


class Reading(msgspec.Struct, Generic[Answer], frozen=True):
    """An answer, and when it was given: in seconds since 1970, and by the clock of the poller."""

    answer: Answer
    at: float
    moment: float


class Polled(Generic[Answer]):
    """One place that is asked about several sources, by one thread."""

    def __init__(self, name: str, every: float = EVERY, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every, self._monotonic = every, monotonic
        self.views: list[ConsumerView] = []
        self.errors: dict[str, int] = {}
        """By source: reads that failed."""
        self._last: dict[str, Reading[Answer]] = {}
        self._pause, self._due = every, 0.0
        self._read: Sequence[str] = ()
        self._failing: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"unpoison-{name}", daemon=True)

    def watch(self, view: ConsumerView) -> None:
        self.errors.setdefault(view.source, 0)
        self.views = [*self.views, view]
        if not self._thread.is_alive() and not self._closed.is_set():
            self._thread.start()

    def close(self) -> None:
        """A read that hangs is left behind: its thread keeps no process alive."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=END_WITHIN)

    def last(self, source: str) -> Reading[Answer] | None:
        """The last answer, however old it is."""
        return self._last.get(source)

    def fresh(self, source: str) -> Answer | None:
        """The last answer, unless it is too old."""
        found = self._last.get(source)
        is_fresh = found is not None and self._monotonic() - found.moment <= FRESH_FOR * self._pause
        return found.answer if found is not None and is_fresh else None

    def _run(self) -> None:
        while not self._closed.wait(self.step()):
            pass
        with suppress(Exception):
            self._let_go()

    def step(self) -> float:
        """Read if that is due. Returns how many seconds to wait."""
        sources = list(dict.fromkeys(view.source for view in self.views if view.is_open()))
        began = self._monotonic()
        if sources and (began >= self._due or sources != self._read):
            self._read = sources
            is_complete = self._read_all(sources)
            ended = self._monotonic()
            # What fails has mostly waited for an answer, which costs the server nothing.
            self._pause = max(self._every, (ended - began) / SHARE) if is_complete else self._every
            self._due = ended + self._pause
        left = max(0.0, self._due - self._monotonic())
        return min(left, SOON) if len(sources) < len(self.views) else left

    def _read_all(self, sources: Sequence[str]) -> bool:
        """True if each of them could be read."""
        try:
            answers = self._answers(sources)
        except Exception as error:  # of an adapter too: the numbers of a consumer must not end with it
            self._fail(sources, error)
            return False
        now, moment = time.time(), self._monotonic()
        self._last |= {source: Reading(answer, now, moment) for source, answer in answers.items()}
        return len(answers) == len(sources)

    def _answers(self, sources: Sequence[str]) -> Mapping[str, Answer]:
        """Ask, once more over a new connection if the old one has been lost meanwhile."""
        if self._is_connected():
            with suppress(UnpoisonError):
                return self._ask(sources)
            self._let_go()
        self._connect(sources)
        return self._ask(sources)

    def _fail(self, sources: Iterable[str], error: Exception) -> None:
        with suppress(Exception):
            self._let_go()
        for source in sources:
            self.errors[source] += 1
        if not isinstance(error, UnpoisonError) and str(error) not in self._failing:
            self._failing.add(str(error))
            text = "Depths could not be read, by a fault in unpoison. Messages are not affected. This is logged once."
            log.error(text, exc_info=error, extra={"event": "depth-fault"})

    def _is_connected(self) -> bool:
        raise NotImplementedError

    def _connect(self, sources: Sequence[str]) -> None:
        raise NotImplementedError

    def _ask(self, sources: Sequence[str]) -> Mapping[str, Answer]:
        raise NotImplementedError

    def _let_go(self) -> None:
        raise NotImplementedError


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
