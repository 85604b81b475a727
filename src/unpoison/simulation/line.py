"""The broker of a simulation: messages arrive at an even pace, and what is kept comes back when it is due.

A message is made when it is fetched, so that a backlog of a million is two numbers. What comes back goes behind everything that
has arrived by then, as on a broker that stores a copy.
"""

import heapq
from collections.abc import Callable, Sequence

import msgspec

from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import ALL_CAPABILITIES, STORED, Depth, Finding, Kept, Published, Ring, Settlement
from unpoison.simulation.ledger import Ledger

COMPACT_AFTER = 1_000
ROUNDING = 1e-6


class Line:
    """The messages of one source. A receipt is the number of the message and how often it was put back uncharged."""

    capabilities = ALL_CAPABILITIES

    def __init__(self, rate: float, seed: int, clock: Callable[[], float], ledger: Ledger) -> None:
        self._rate, self._seed, self._clock, self._ledger = rate, seed, clock, ledger
        self._next = self._kept = 0
        self._delayed: list[tuple[float, int, Delivery]] = []
        self._again: list[tuple[int, Delivery]] = []
        """Messages that are due again, each with how many had arrived before; those before `_first` are gone."""
        self._first = 0

    def arrived(self, now: float) -> int:
        return int(now * self._rate + ROUNDING)

    def waiting(self) -> int:
        """How many messages are neither done nor dead."""
        return self.arrived(self._clock()) - self._ledger.done - self._ledger.dead

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        fetched: list[Delivery] = []
        arrived = self._make_ready()
        while len(fetched) < limit:
            at = self._again[self._first][0] if self._first < len(self._again) else arrived
            fresh = min(at, arrived, self._next + limit - len(fetched))
            if fresh > self._next:
                fetched += [Delivery((n, 0), source, f"{self._seed}-{n}", b"") for n in range(self._next, fresh)]
                self._next = fresh
            elif self._first < len(self._again):
                fetched.append(self._again[self._first][1])
                self._first += 1
            else:
                break
        return fetched

    def _make_ready(self) -> int:
        """Move what is due; returns how many messages have ever arrived."""
        now = self._clock()
        if self._first > COMPACT_AFTER:
            del self._again[: self._first]
            self._first = 0
        while self._delayed and self._delayed[0][0] <= now:
            due, _, delivery = heapq.heappop(self._delayed)
            self._again.append((self.arrived(due), delivery))
        return self.arrived(now)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        ledger = self._ledger
        ledger.finished(settlement.gone)
        for dead in settlement.dead:
            ledger.gave_up(dead.letter.attempts)
        for kept in settlement.kept:
            self._keep(kept)
        return [None] * len(settlement.dead)

    def _keep(self, kept: Kept) -> None:
        number, times = kept.delivery.receipt
        if kept.counters.charged <= kept.delivery.counters.charged:
            times += 1
            self._ledger.put_off(times)
        self._ledger.charged(kept.counters.charged)
        self._kept += 1
        again = msgspec.structs.replace(kept.delivery, receipt=(number, times), counters=kept.counters)
        heapq.heappush(self._delayed, (self._clock() + kept.after, self._kept, again))

    def has_suspect(self, source: str) -> bool:
        return False  # no process vanishes here

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        return None

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        return ()

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        return STORED

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """They are held for as long as it takes."""

    def depth(self, source: str) -> Depth:
        return Depth(ready=self.waiting(), dead=self._ledger.dead)

    def close(self) -> None:
        """What was held has been settled."""
