"""How is a message found that runs too long, and how is it made sure before its worker is ended?"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unpoison.decide.options import ConsumerOptions
    from unpoison.workers.assignments import Running
    from unpoison.workers.pooled_worker import Seat

SLOW = 1.0
"""Seconds after which a message no longer holds those behind it in its batch."""

CANCEL = 1.0
"""Seconds that a cancelled task gets to end before its worker is ended."""

MAX_LOOK_INTERVAL = 1.0
"""Seconds between two looks at the most."""

LOOKS_PER_LIMIT = 4

MIN_LOOK_INTERVAL = 0.005
"""Seconds between two looks at the least: workers with quick messages stir thousands of times a second."""

LATE = 0.1
"""Seconds by which a look may be late. If it is later, this whole process stood still, and most likely the workers with it."""


class Watch:
    """Watches the clocks that workers write beside what they are running."""

    def __init__(self, options: "ConsumerOptions") -> None:
        self._limit = None if options.timeout is None else options.timeout + (CANCEL if options.is_async else 0.0)
        self._is_async = options.is_async
        self._look_every = MAX_LOOK_INTERVAL if self._limit is None else min(MAX_LOOK_INTERVAL, self._limit / LOOKS_PER_LIMIT)
        self._next_look = time.monotonic() + self._look_every
        self._not_before = 0.0
        self._pauses: list[tuple[float, float]] = []
        self._slow_since: dict[Seat, int] = {}
        self._slow_after = 0.0

    def next_look(self, seats: "Sequence[Seat]") -> float:
        """Seconds until one of these could be over its limit, or too slow."""
        soonest, now = self._look_every, time.monotonic()
        for seat in seats:
            for one in seat.book.running():
                soonest = min(soonest, self._until(one, now))
        return max(0.001, soonest)

    def is_due(self) -> bool:
        """Whether the last look is long enough ago for another one."""
        return time.monotonic() >= self._not_before

    def overdue(self, seats: "Sequence[Seat]") -> "Sequence[Seat]":
        """Workers with a message over its limit. Time in which everything stood still (a frozen machine) does not count."""
        now = time.monotonic()
        self._note_pause(now, seats)
        if self._limit is None:
            return ()
        return [seat for seat in seats if any(self._is_late(one, now) for one in seat.book.running())]

    def _note_pause(self, now: float, seats: "Sequence[Seat]") -> None:
        if now > self._next_look + LATE:
            # Only the delay counts as a pause: a consumer that is always late must still find out who is over the limit.
            self._pauses.append((now, now - self._next_look))
        if self._pauses:
            oldest = min((one.since / 1e9 for seat in seats for one in seat.book.running()), default=now)
            self._pauses = [(when, length) for when, length in self._pauses if when > oldest]
        self._next_look, self._not_before = now + self._look_every, now + MIN_LOOK_INTERVAL

    def caught(self, seat: "Seat") -> "Running | None":
        """The message to be charged if it is still over its limit when looked at closely; the worker then stands still.

        Without the second look a message that has just ended would be killed together with its innocent successor.
        """
        process = seat.process
        if not process.stand_still():
            process.ask_for_stack()  # it does not react: ended all the same, below
        elif not self._late(seat):
            process.go_on()
            return None
        else:
            process.ask_for_stack()
            process.stand_still()
        late = self._late(seat)
        if not late:
            process.go_on()
            return None
        if self._is_async:
            step = seat.process.marks.stepping()
            return next((one for one in seat.book.running() if one.lane == step), late[0])
        return late[0]

    def slow(self, seats: "Sequence[Seat]") -> "Sequence[Seat]":
        """Workers whose message has been running for a while, with others waiting behind it. Each is named once per message."""
        found: list[Seat] = []
        if time.monotonic() < self._slow_after:
            return found
        for seat in seats:
            running = seat.book.running()
            if (
                len(running) == 1
                and seat.book.held() > 1
                and self.is_slow(seat)
                and self._slow_since.get(seat) != running[0].since
            ):
                self._slow_since[seat] = running[0].since
                found.append(seat)
        self._slow_since = {seat: since for seat, since in self._slow_since.items() if seat in seats}
        return found

    def could_not_stop(self, seat: "Seat") -> None:
        """What is behind its slow message could not be taken back, on a busy machine for instance: named again in a while."""
        self._slow_since.pop(seat, None)
        self._slow_after = time.monotonic() + SLOW

    def is_slow(self, seat: "Seat") -> bool:
        if self._is_async or seat.consumer.options.threads > 1:
            return False
        now = time.monotonic_ns()
        return any(now - one.since > SLOW * 1e9 for one in seat.book.running())

    def _late(self, seat: "Seat") -> "Sequence[Running]":
        now = time.monotonic()
        return [one for one in seat.book.running() if self._is_late(one, now)]

    def _is_late(self, one: "Running", now: float) -> bool:
        return self._limit is not None and now > one.since / 1e9 + self._limit + self._paused_since(one.since / 1e9)

    def _until(self, one: "Running", now: float) -> float:
        began = one.since / 1e9
        slow = began + SLOW - now
        if self._limit is None:
            return slow if slow > 0 else MAX_LOOK_INTERVAL
        late = began + self._limit + self._paused_since(began) - now
        return min(late, slow) if slow > 0 else late

    def _paused_since(self, moment: float) -> float:
        return sum(length for when, length in self._pauses if when > moment)
