"""How much is handed to a worker at a time?

As much as it does in about 50 ms, and no more than 256 messages: quick handlers get full batches with the next one
waiting, slow ones get one message at a time and hoard nothing.
"""

import time
from collections.abc import Sequence

from unpoison.message import Delivery
from unpoison.options import ConsumerOptions
from unpoison.workers.books import weight
from unpoison.workers.marks import BATCH, BATCHES
from unpoison.workers.seat import Seat

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

    def may_have_more(self, seat: Seat) -> bool:
        free = seat.book.free()
        return free > 0 if self._in_lanes or self._average < ONE_AHEAD_BELOW else free == BATCHES

    def portion(self, queue: list[Delivery], seat: Seat, at_most: int) -> Sequence[Delivery]:
        """Take the next batch for this worker off the queue."""
        count = min(at_most, seat.book.free() if self._in_lanes else self._size)
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

    def measured(self, seat: Seat, count: int) -> None:
        """A batch of so many has ended in this worker."""
        now = time.monotonic()
        if count == 0 or self._in_lanes:
            return
        took = (now - seat.given_at) / count
        seat.given_at = now
        self._average += (took - self._average) * (0.5 if took > self._average else 0.25)
        fit = int(TARGET / self._average) if self._average > 0 else BATCH
        self._size = max(1, min(BATCH, fit, self._size * 4))
