"""Finds messages that run too long, and makes sure of it before their worker is killed."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unpoison.worker.on_failure import HOOK_LIMIT

if TYPE_CHECKING:
    from unpoison.decide.options import ConsumerOptions
    from unpoison.workers.assignments import Running
    from unpoison.workers.pooled_worker import PooledWorker

SLOW = 1.0
"""Seconds after which a message no longer holds those behind it in its batch."""

CANCEL = 1.0
"""Seconds that a cancelled task gets to end before its worker is killed."""

MAX_LOOK_INTERVAL = 1.0
"""Seconds between two looks at the most."""

LOOKS_PER_LIMIT = 4

MIN_LOOK_INTERVAL = 0.005
"""Seconds between two looks at the least: workers with quick messages report thousands of times a second."""

LATE = 0.1
"""Seconds by which a look may be late. If it is later, this whole process stood still, and most likely the workers with it."""


class Watch:
    """Reads since when workers have been running what they run."""

    def __init__(self, options: "ConsumerOptions") -> None:
        self._limit = None if options.timeout is None else options.timeout + (CANCEL if options.is_async else 0.0)
        self._is_async = options.is_async
        self._look_every = MAX_LOOK_INTERVAL if self._limit is None else min(MAX_LOOK_INTERVAL, self._limit / LOOKS_PER_LIMIT)
        self._next_look = time.monotonic() + self._look_every
        self._not_before = 0.0
        self._pauses: list[tuple[float, float]] = []
        self._slow_since: dict[PooledWorker, int] = {}
        self._slow_after = 0.0

    def next_look(self, workers: "Sequence[PooledWorker]") -> float:
        """Seconds until one of these could be over its limit, or too slow."""
        soonest, now = self._look_every, time.monotonic()
        for worker in workers:
            for one in worker.assignments.running():
                soonest = min(soonest, self._until(one, now))
        return max(0.001, soonest)

    def is_due(self) -> bool:
        """Whether the last look is long enough ago for another one."""
        return time.monotonic() >= self._not_before

    def overdue(self, workers: "Sequence[PooledWorker]") -> "Sequence[PooledWorker]":
        """Workers with a message over its limit. Time in which everything stood still (a frozen machine) does not count."""
        now = time.monotonic()
        self._note_pause(now, workers)
        if self._limit is None:
            return ()
        return [worker for worker in workers if any(self._is_late(one, now) for one in worker.assignments.running())]

    def in_long_hooks(self, workers: "Sequence[PooledWorker]") -> "Sequence[PooledWorker]":
        """Workers whose `on_failure` takes too long."""
        since = time.monotonic_ns() - (HOOK_LIMIT + CANCEL) * 1e9
        return [worker for worker in workers if 0 < worker.process.marks.hook_since < since]

    def _note_pause(self, now: float, workers: "Sequence[PooledWorker]") -> None:
        if now > self._next_look + LATE:
            # Only the delay counts as a pause: a consumer that is always late must still find out who is over the limit.
            self._pauses.append((now, now - self._next_look))
        if self._pauses:
            oldest = min((one.since / 1e9 for worker in workers for one in worker.assignments.running()), default=now)
            self._pauses = [(when, length) for when, length in self._pauses if when > oldest]
        self._next_look, self._not_before = now + self._look_every, now + MIN_LOOK_INTERVAL

    def caught(self, worker: "PooledWorker") -> "Running | None":
        """The message to be charged if it is still over its limit when looked at closely; the worker then stands still.

        Without the second look a message that has just ended would be killed together with its innocent successor.
        """
        process = worker.process
        if not process.stand_still():
            process.ask_for_stack()  # it does not react: it is killed below all the same
        elif not self._late(worker):
            process.go_on()
            return None
        else:
            process.ask_for_stack()
            process.stand_still()
        late = self._late(worker)
        if not late:
            process.go_on()
            return None
        if self._is_async:
            step = worker.process.marks.stepping()
            return next((one for one in worker.assignments.running() if one.lane == step), late[0])
        return late[0]

    def slow(self, workers: "Sequence[PooledWorker]") -> "Sequence[PooledWorker]":
        """Workers whose message has been running for a while, with others waiting behind it. Each is named once per message."""
        found: list[PooledWorker] = []
        if time.monotonic() < self._slow_after:
            return found
        for worker in workers:
            running = worker.assignments.running()
            if (
                len(running) == 1
                and worker.assignments.held() > 1
                and self.is_slow(worker)
                and self._slow_since.get(worker) != running[0].since
            ):
                self._slow_since[worker] = running[0].since
                found.append(worker)
        self._slow_since = {worker: since for worker, since in self._slow_since.items() if worker in workers}
        return found

    def could_not_stop(self, worker: "PooledWorker") -> None:
        """What is behind its slow message could not be taken back, on a busy machine for instance: named again in a while."""
        self._slow_since.pop(worker, None)
        self._slow_after = time.monotonic() + SLOW

    def is_slow(self, worker: "PooledWorker") -> bool:
        if self._is_async or worker.consumer.options.threads > 1:
            return False
        now = time.monotonic_ns()
        return any(now - one.since > SLOW * 1e9 for one in worker.assignments.running())

    def _late(self, worker: "PooledWorker") -> "Sequence[Running]":
        now = time.monotonic()
        return [one for one in worker.assignments.running() if self._is_late(one, now)]

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
