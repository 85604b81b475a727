"""Which of the waiting messages goes to which worker next?

Batches go to workers that are at work already, so that the spare one stays unused. A message that needs a fresh worker
gets that one, beside the others: it counts towards the concurrency, and batches do not wait for it.
"""

from collections import deque
from collections.abc import Sequence

from unpoison.message import Delivery
from unpoison.options import ConsumerOptions
from unpoison.workers.books import weight
from unpoison.workers.marks import BATCH
from unpoison.workers.pace import Pace
from unpoison.workers.seat import Seat
from unpoison.workers.watch import Watch


class Dispatch:
    """What waits for a worker of one source."""

    def __init__(self, options: ConsumerOptions, pace: Pace, watch: Watch, recycle_after: int | None) -> None:
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

    def hand_out(self, seats: Sequence[Seat]) -> None:
        """As much as the workers can take now."""
        if not (self.queue or self.fresh):
            return
        solos = sum(1 for seat in seats if seat.is_solo and seat.book.held())
        reserved = self._reserved(solos)
        self._hand_out_fresh(seats, reserved - solos)
        if self.queue:
            self._hand_out_batches(seats, reserved)

    def _reserved(self, solos: int) -> int:
        """How many places fresh workers may have. While batches wait as well, one place is theirs, or every second turn."""
        asked = solos + len(self.fresh)
        if not self.queue:
            return min(asked, self._wanted)
        if self._wanted == 1 and not self._has_lanes and self._is_turn_of_batches:
            return solos
        return min(asked, max(1, self._wanted - 1))

    def _hand_out_fresh(self, seats: Sequence[Seat], count: int) -> None:
        for _ in range(count):
            unused = next((seat for seat in seats if seat.is_able and not seat.uses and not seat.book.held()), None)
            if unused is None or not self._has_place(seats) or not unused.give([self.fresh[0]]):
                return
            self.fresh.popleft()
            unused.is_solo = True
            self._is_turn_of_batches = True

    def _has_place(self, seats: Sequence[Seat]) -> bool:
        """Whether one more message may run."""
        if self._has_lanes:
            return sum(seat.book.held() for seat in seats) < self._wanted * self._lanes
        return sum(1 for seat in seats if seat.book.held()) < self._wanted

    def _hand_out_batches(self, seats: Sequence[Seat], reserved: int) -> None:
        for seat in self._takers(seats, self._wanted - reserved):
            while self.queue and self._pace.may_have_more(seat) and (left := self._left(seat, seats, reserved)) > 0:
                portion = self._pace.portion(self.queue, seat, left)
                if not seat.give(portion):
                    self.queue[:0] = portion
                    break
                self._is_turn_of_batches = False

    def _takers(self, seats: Sequence[Seat], places: int) -> Sequence[Seat]:
        """The workers that batches go to, those with the least in hand first: no more of them than have a place."""
        regular = [seat for seat in seats if not seat.is_solo]
        able = [seat for seat in regular if seat.is_able and not self._watch.is_slow(seat)]
        if self._has_lanes:
            places = self._wanted  # a fresh worker takes a lane's worth of the concurrency, and no worker's place
        else:
            places -= sum(1 for seat in regular if seat.book.held() and seat not in able)
        at_work_first = sorted(able, key=lambda seat: (not seat.book.held(), seat.uses == 0))
        return sorted(at_work_first[: max(0, places)], key=lambda seat: (seat.uses == 0, seat.book.held()))

    def _left(self, seat: Seat, seats: Sequence[Seat], reserved: int) -> int:
        """How many more messages this worker may be given."""
        left = BATCH if self._recycle_after is None else self._recycle_after - seat.uses - seat.book.held()
        if not self._has_lanes:
            return left
        in_hand = sum(each.book.held() for each in seats if not each.is_solo)
        return min(left, self._wanted * self._lanes - reserved - in_hand)
