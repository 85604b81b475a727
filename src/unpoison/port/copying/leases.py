"""Hold messages for as long as the server has promised, and no longer.

Some servers hand a message to another consumer when they hear nothing of the first for a while, and tell neither. So a consumer
keeps its own account, by its own clock and counted from before it asked: what it may have held for too long counts as lost.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from unpoison.errors import UnpoisonError
from unpoison.model.events import fields
from unpoison.port.copying.settling import Receipt

log = logging.getLogger("unpoison")

SURE = 0.8
"""Of the time that the server promises a part is kept back: an answer may be on its way for a while."""

LONGEST_TICK = 0.5

H = TypeVar("H", bound=Hashable)


class Leases(Generic[H]):
    """What is held of one queue, by handle. `promised` is how long the server leaves a message to us after it last heard of it;
    `longest`, how long it does so in all. Several threads may use it."""

    def __init__(self, promised: float, longest: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.lasts = SURE * promised
        self._longest, self._clock, self._lock = longest, clock, threading.Lock()
        self.until: dict[H, float] = {}
        self._ends: dict[H, float] = {}

    def __len__(self) -> int:
        return len(self.until)

    def take(self, handles: Iterable[H], since: float) -> None:
        """Hold these, which were asked for at that moment."""
        handles = list(handles)
        self.hold(dict.fromkeys(handles, since + self.lasts))
        if self._longest is not None:
            self._ends.update(dict.fromkeys(handles, since + self._longest))

    def hold(self, until: Mapping[H, float]) -> None:
        """Hold these until then."""
        with self._lock:
            self.until.update(until)

    def holds(self, handle: H) -> bool:
        return self.until.get(handle, 0.0) > self._clock()

    def held(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Those of these that are still ours."""
        now, until = self._clock(), self.until.get
        return [receipt for receipt in receipts if until(receipt.handle, 0.0) > now]

    @property
    def is_late(self) -> bool:
        """Whether something was held for longer than the server has promised."""
        return bool(self.until) and min(list(self.until.values())) <= self._clock()

    def forget(self, handles: Iterable[H]) -> None:
        """These are gone."""
        with self._lock:
            for handle in handles:
                self.until.pop(handle, None)
                self._ends.pop(handle, None)

    def lose(self, handles: Iterable[H]) -> None:
        """These belong to another consumer by now."""
        with self._lock:
            for handle in handles:
                if handle in self.until:
                    self.until[handle] = 0.0

    def renewable(self, within: float = float("inf")) -> list[H]:
        """What is ours, could be kept for longer, and else ends within so many seconds; the most urgent first."""
        now = self._clock()
        due = [(until, handle) for handle, until in list(self.until.items()) if now < until < now + within]
        if self._longest is not None:
            due = [(until, handle) for until, handle in due if self._ends.get(handle, 0.0) > now + self.lasts / SURE]
        return [handle for _, handle in sorted(due, key=lambda each: each[0])]

    def is_ending(self, handle: H, within: float) -> bool:
        """Whether this cannot be kept for longer, and is ours for less than so many seconds."""
        now = self._clock()
        is_last = self._longest is not None and self._ends.get(handle, 0.0) <= now + self.lasts / SURE
        return is_last and self.until.get(handle, 0.0) < now + within

    def left(self, handles: Iterable[H]) -> float:
        """Seconds for which all of these could still be held."""
        return min((self._ends[handle] for handle in handles if handle in self._ends), default=float("inf")) - self._clock()

    def renewed(self, handles: Iterable[H], asked_at: float) -> None:
        """The server has confirmed that these are ours for another while. An answer that came too late renews nothing: the server
        may have given the message to another consumer before it heard us, and said yes all the same."""
        with self._lock:
            answered_at = self._clock()
            for handle in handles:
                until = self.until.get(handle)
                if until is not None:  # else it was settled meanwhile
                    self.until[handle] = asked_at + self.lasts if until > answered_at else 0.0

    def give_up(self) -> list[H]:
        """Hold nothing any more. Returns what was still ours."""
        with self._lock:
            now = self._clock()
            ours = [handle for handle, until in self.until.items() if until > now]
            self.until.clear()
            self._ends.clear()
            return ours


class Keeper:
    """A thread that tells the server that we are still at work, while handlers run: it calls `renew` about every `every` seconds,
    and `look` more often."""

    def __init__(self, every: float, renew: Callable[[], None], look: Callable[[], None]) -> None:
        self._every, self._renew, self._look = every, renew, look
        self._told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unpoison-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        tick = min(LONGEST_TICK, self._every)
        passed = 0.0
        while not self._ended.wait(tick):
            passed += tick
            if passed >= self._every:
                passed = 0.0
                self._attempt(self._renew)
            self._attempt(self._look)

    def _attempt(self, call: Callable[[], None]) -> None:
        """The next time may be in time; if not, what is held counts as lost. This thread must not end by any error: whatever is
        held from then on would be lost, again and again."""
        try:
            call()
        except UnpoisonError:
            pass  # the consumer meets it too, and reports it
        except Exception:
            if not self._told:
                self._told = True
                log.exception(
                    "The thread that tells the server which messages this consumer still works on met an error, and goes on. "
                    "Messages that it cannot keep are delivered again. It says this once. It is a bug in unpoison: please report "
                    "the traceback.",
                    extra=fields("keeper-error"),
                )

    def close(self) -> None:
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def all_in_turn(calls: Iterable[Callable[[], None]]) -> None:
    """Do all of these, also after one that failed. Raises the first error, once all were tried."""
    failed: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed
