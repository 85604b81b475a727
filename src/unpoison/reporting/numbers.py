"""What is counted about one source besides its log: how often handlers started, how long they ran, how workers ended.

The thread of its consumer writes these numbers, a batch at a time, and any other thread may read them at any moment: each is one
number that only grows, so there is nothing to lock.
"""

import enum
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds, in seconds, by which durations are told apart; what is longer counts behind the last one."""
_NS = tuple(int(bound * 1e9) for bound in BOUNDS)
_LONGEST = 100 * 86_400 * 10**9


class Durations:
    """How long handlers ran. Times are nanoseconds of one monotonic clock. A worker may have written over its notes: a time that
    cannot be is left out."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0
        """Nanoseconds of all of them together."""

    def add(self, took: int) -> None:
        if 0 <= took < _LONGEST:
            self.counts[bisect_left(_NS, took)] += 1
            self.total += took

    def add_batch(self, times: Sequence[int], failed: Mapping[int, int | None]) -> None:
        """Of messages that ran one after the other: `times` says since when each of them ran, and when the last one had ended.
        `failed` says of each that failed for how long it ran, None if it was not started: the next one did not begin at once."""
        first = 0
        for index in sorted(failed):
            self._add_row(times[first : index + 1])
            first = index + 1
            if (took := failed[index]) is not None:
                self.add(took)
        self._add_row(times[first:])

    def _add_row(self, times: Sequence[int]) -> None:
        """Of messages of which each began when the one before had ended. If all of them together took no longer than the first
        bound, none is looked at by itself."""
        whole = times[-1] - times[0] if times else -1
        if 0 <= whole <= _NS[0]:
            self.counts[0] += len(times) - 1
            self.total += whole
        elif whole > 0:
            for took in map(sub, times[1:], times):
                self.add(took)


class WorkerEnd(enum.StrEnum):
    """Why a worker process ended before its time."""

    CRASH = "crash"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    EXIT = "exit"


@dataclass(slots=True)
class SourceNumbers:
    """Of one source, since its consumer was started. `durations` is None where nobody asks how long handlers run."""

    durations: Durations | None = None
    starts: int = 0
    over_limit: int = 0
    """Starts of messages that had used up their attempts before."""
    recovered: int = 0
    """Messages that came back from a consumer or a worker that had died with them."""
    worker_ends: dict[WorkerEnd, int] = field(default_factory=lambda: dict.fromkeys(WorkerEnd, 0))
