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

from unpoison.errors import UnpoisonError
from unpoison.model.events import fields
from unpoison.reporting.consumer_state import ConsumerView

log = logging.getLogger("unpoison")

EVERY = 15.0
"""Seconds between two reads of one broker."""
SHARE = 0.05
"""No more of the time than this is spent reading: where a read is slow, the next one comes later."""
FRESH_FOR = 4
"""Intervals after which an answer is no longer given out. One read that fails does not make a graph blink."""
SOON = 0.5
"""Seconds between two looks whether another source can be read."""
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
        if not sources:
            return SOON
        left = max(0.0, self._due - self._monotonic())
        return left if all(view.is_open() for view in self.views) else min(left, SOON)

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
            log.error(text, exc_info=error, extra=fields("depth-fault"))

    def _is_connected(self) -> bool:
        raise NotImplementedError

    def _connect(self, sources: Sequence[str]) -> None:
        raise NotImplementedError

    def _ask(self, sources: Sequence[str]) -> Mapping[str, Answer]:
        raise NotImplementedError

    def _let_go(self) -> None:
        raise NotImplementedError
