"""Hold messages for as long as the server has promised, and no longer.

Some servers hand a message to another consumer when they hear nothing of the first for a while, and tell neither. So a consumer
keeps its own account, by its own clock and counted from before it asked: what it may have held for too long counts as lost.
"""

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from unpoison.errors import OwnershipLost, UnpoisonError
from unpoison.model.message import Delivery
from unpoison.port.broker import Kept, Ring, Settlement
from unpoison.port.copying.settling import Copies, Receipt, Settler, by_holder, handed_back

SURE = 0.8
"""Of the time that the server promises a part is kept back: an answer may be on its way for a while."""

LONGEST_TICK = 0.5
GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""

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
                with suppress(UnpoisonError):  # the next time may be in time; if not, what is held counts as lost
                    self._renew()
            with suppress(UnpoisonError):
                self._look()

    def close(self) -> None:
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class LeasedSource(Protocol):
    """One source, as far as this process consumes it."""

    promised: float
    """Seconds for which the server leaves a message to a consumer of which it hears nothing."""

    @property
    def is_late(self) -> bool:
        """Whether something was held for longer than the server has promised."""

    def is_left_alone(self, after: float) -> bool:
        """Whether messages wait here and none was fetched for so long."""

    def verify(self) -> None:
        """Find out whether the server still knows that we hold what we hold."""

    def renew(self) -> None:
        """Keep what is held for another while. Called by a thread of its own, also while the consumer settles."""

    def stop_listening(self) -> None:
        """Take no more messages until the next fetch."""

    def unfetched(self) -> Iterator[Sequence[Delivery]]:
        """What waits here and was not fetched, in batches. Nothing more comes until the next fetch."""

    def give_up(self) -> None:
        """Return what is still ours at once, as from a consumer that vanished, and leave the rest alone."""

    def close(self) -> None:
        """Ask for nothing any more."""


S = TypeVar("S", bound=LeasedSource)


class LeasedSources(Generic[S]):
    """The sources that one consumer takes messages from: what it holds there is renewed by a thread, given back when nobody
    fetches it, and settled. `lost` says what it means that messages were lost."""

    def __init__(
        self,
        make: Callable[[str], S],
        copies: Copies,
        lost: str,
        in_place: Callable[[Sequence[Kept]], Collection[Receipt]] = lambda _: (),
    ) -> None:
        self._make, self._lost_text = make, lost
        self._settler = Settler(copies, self._lost, in_place)
        self.lock = threading.RLock()
        """Held during each call of the consumer."""
        self.ring: Ring = lambda: None
        self.known: dict[str, S] = {}
        self._keeper: Keeper | None = None

    def wake(self) -> None:
        """Ring: there may be something to fetch, or to find out."""
        self.ring()

    def source(self, name: str) -> S:
        if name not in self.known:
            self.known[name] = self._make(name)
        if self._keeper is None:
            shortest = min(known.promised for known in self.known.values())
            self._keeper = Keeper(shortest / 4, self._renew, self._look_after)
        return self.known[name]

    def to_fetch(self, name: str) -> S:
        """The source, for a fetch. Raises OwnershipLost, once, if something that we held there was lost."""
        known = self.source(name)
        known.verify()
        if known.is_late:
            raise self._lost(known)
        return known

    def settle(self, settlement: Settlement) -> list[str | None]:
        self._verify()
        for name in handed_back(settlement.kept) & self.known.keys():
            self.known[name].stop_listening()
        return self._settler.settle(settlement)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        self._verify()
        if not self._settler.holds(deliveries):
            raise self._lost()
        for holder, _ in by_holder([delivery.receipt for delivery in deliveries]):
            holder.renew()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Give everything back."""
        with self.lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        with self.lock:
            for known in self.known.values():
                known.close()
                with suppress(UnpoisonError):
                    self._give_back(known)
                    known.give_up()
            self.known.clear()

    def _verify(self) -> None:
        for known in self.known.values():
            known.verify()

    def _renew(self) -> None:
        for known in list(self.known.values()):
            known.renew()

    def _look_after(self) -> None:
        """Now and then: was something held for too long, and does something wait here that nobody fetches?"""
        for known in list(self.known.values()):
            if known.is_late:
                self.wake()
            # Who has the lock is at work; to wait for it would keep us from renewing.
            if known.is_left_alone(GIVE_BACK_AFTER) and self.lock.acquire(blocking=False):
                try:
                    if self._keeper is not None and known.is_left_alone(GIVE_BACK_AFTER):
                        self._give_back(known)
                finally:
                    self.lock.release()

    def _give_back(self, known: S) -> None:
        for deliveries in known.unfetched():
            self._settler.give_back(deliveries)

    def _lost(self, *lost: S) -> OwnershipLost:
        """Told once. The consumer drops its results, so what is still ours goes back too."""
        for known in lost or [each for each in self.known.values() if each.is_late]:
            with suppress(UnpoisonError):
                known.give_up()
        self._settler.forget_lost()
        return OwnershipLost(self._lost_text)
