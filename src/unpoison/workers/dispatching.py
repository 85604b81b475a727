"""Decides which waiting messages go to which worker, and how many at a time.

A worker gets as much as it does in about 50 ms (`Pace`), at most 256 messages: quick handlers get full batches with the next
one waiting, slow ones get one message at a time and hoard nothing. Batches go to workers that are already in use, so that the
spare one stays unused (`Dispatch`). A message that needs a fresh worker gets the spare one, beside the others: it counts
towards the concurrency, and batches do not wait for it.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unpoison.decide.options import ConsumerOptions
from unpoison.model.message import Delivery
from unpoison.worker.marks import BATCH, BATCHES
from unpoison.workers.assignments import weight

if TYPE_CHECKING:
    from unpoison.workers.pooled_worker import PooledWorker
    from unpoison.workers.watch import Watch

TARGET = 0.05
ONE_AHEAD_BELOW = 0.01
"""Seconds per message up to which a worker has its next batch waiting."""

BATCH_BYTES = 4 * 1024 * 1024


class Pace:
    """Measures how long messages take, and sizes batches by it."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._lanes = options.lanes
        self._in_lanes = options.is_async or options.threads > 1
        self._average = TARGET / 4
        self._size = 4

    def per_worker(self) -> int:
        """How many messages a worker may have in hand."""
        if self._in_lanes:
            return self._lanes
        return self._size * BATCHES if self._average < ONE_AHEAD_BELOW else 1

    def may_have_more(self, worker: "PooledWorker") -> bool:
        free = worker.assignments.free()
        return free > 0 if self._in_lanes or self._average < ONE_AHEAD_BELOW else free == BATCHES

    def portion(self, queue: list[Delivery], worker: "PooledWorker", at_most: int) -> Sequence[Delivery]:
        """Take the next batch for this worker off the queue."""
        count = min(at_most, worker.assignments.free() if self._in_lanes else self._size)
        taken = queue[:count]
        if weight(taken) > BATCH_BYTES:
            taken = self._up_to_bytes(taken)
        del queue[: len(taken)]
        return taken

    @staticmethod
    def _up_to_bytes(deliveries: Sequence[Delivery]) -> list[Delivery]:
        """As many as fit, but at least one: large bodies travel in small company."""
        taken, room = [deliveries[0]], BATCH_BYTES - len(deliveries[0].body)
        for delivery in deliveries[1:]:
            room -= len(delivery.body)
            if room < 0:
                break
            taken.append(delivery)
        return taken

    def measured(self, worker: "PooledWorker", count: int) -> None:
        """A batch of so many has ended in this worker."""
        now = time.monotonic()
        if count == 0 or self._in_lanes:
            return
        took = (now - worker.given_at) / count
        worker.given_at = now
        self._average += (took - self._average) * (0.5 if took > self._average else 0.25)
        fit = int(TARGET / self._average) if self._average > 0 else BATCH
        self._size = max(1, min(BATCH, fit, self._size * 4))


class Dispatch:
    """What waits for a worker of one source."""

    def __init__(self, options: ConsumerOptions, pace: Pace, watch: "Watch", recycle_after: int | None) -> None:
        self._pace, self._watch, self._recycle_after = pace, watch, recycle_after
        self._wanted = options.processes
        self._lanes = options.lanes
        self._has_lanes = options.is_async or options.threads > 1
        self.queue: list[Delivery] = []
        self.fresh: deque[Delivery] = deque()
        self._is_turn_of_batches = False

    def __len__(self) -> int:
        return len(self.queue) + len(self.fresh)

    def weight(self) -> int:
        """Bytes that wait."""
        return weight(self.queue) + weight(self.fresh)

    def take_all(self) -> list[Delivery]:
        taken = [*self.fresh, *self.queue]
        self.fresh.clear()
        self.queue.clear()
        return taken

    def hand_out(self, workers: "Sequence[PooledWorker]") -> None:
        """As much as the workers can take now."""
        if not (self.queue or self.fresh):
            return
        solos = sum(1 for worker in workers if worker.is_solo and worker.assignments.held())
        reserved = self._reserved(solos)
        self._hand_out_fresh(workers, reserved - solos)
        if self.queue:
            self._hand_out_batches(workers, reserved)

    def _reserved(self, solos: int) -> int:
        """How many places fresh workers may have. While batches wait as well, one place is theirs, or every second turn."""
        asked = solos + len(self.fresh)
        if not self.queue:
            return min(asked, self._wanted)
        if self._wanted == 1 and not self._has_lanes and self._is_turn_of_batches:
            return solos
        return min(asked, max(1, self._wanted - 1))

    def _hand_out_fresh(self, workers: "Sequence[PooledWorker]", count: int) -> None:
        for _ in range(count):
            unused = next(
                (worker for worker in workers if worker.is_able and not worker.uses and not worker.assignments.held()), None
            )
            if unused is None or not self._has_place(workers) or not unused.give([self.fresh[0]]):
                return
            self.fresh.popleft()
            unused.is_solo = True
            self._is_turn_of_batches = True

    def _has_place(self, workers: "Sequence[PooledWorker]") -> bool:
        """Whether one more message may run."""
        if self._has_lanes:
            return sum(worker.assignments.held() for worker in workers) < self._wanted * self._lanes
        return sum(1 for worker in workers if worker.assignments.held()) < self._wanted

    def _hand_out_batches(self, workers: "Sequence[PooledWorker]", reserved: int) -> None:
        for worker in self._takers(workers, self._wanted - reserved):
            while self.queue and self._pace.may_have_more(worker) and (left := self._left(worker, workers, reserved)) > 0:
                portion = self._pace.portion(self.queue, worker, left)
                if not worker.give(portion):
                    self.queue[:0] = portion
                    break
                self._is_turn_of_batches = False

    def _takers(self, workers: "Sequence[PooledWorker]", places: int) -> "Sequence[PooledWorker]":
        """The workers that batches go to, those with the least in hand first: no more of them than have a place."""
        regular = [worker for worker in workers if not worker.is_solo]
        able = [worker for worker in regular if worker.is_able and not self._watch.is_slow(worker)]
        if self._has_lanes:
            places = self._wanted  # a fresh worker takes a lane's worth of the concurrency, and no worker's place
        else:
            places -= sum(1 for worker in regular if worker.assignments.held() and worker not in able)
        at_work_first = sorted(able, key=lambda worker: (not worker.assignments.held(), worker.uses == 0))
        return sorted(at_work_first[: max(0, places)], key=lambda worker: (worker.uses == 0, worker.assignments.held()))

    def _left(self, worker: "PooledWorker", workers: "Sequence[PooledWorker]", reserved: int) -> int:
        """How many more messages this worker may be given."""
        left = BATCH if self._recycle_after is None else self._recycle_after - worker.uses - worker.assignments.held()
        if not self._has_lanes:
            return left
        in_hand = sum(each.assignments.held() for each in workers if not each.is_solo)
        return min(left, self._wanted * self._lanes - reserved - in_hand)
