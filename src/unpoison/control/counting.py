"""Counts what happened lately. Times are passed in."""

from collections import deque

BUCKETS = 30


class RecentCount:
    """How many in the last so many seconds, give or take a thirtieth of them. Costs no more for a million than for one."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._width = seconds, seconds / BUCKETS
        self._buckets: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, count: int, now: float) -> None:
        if count <= 0:
            return
        bucket = int(now / self._width)
        if self._buckets and self._buckets[-1][0] >= bucket:  # a clock that was set back counts into the last bucket
            last, before = self._buckets.pop()
            self._buckets.append((last, before + count))
        else:
            self._buckets.append((bucket, count))
        self._total += count
        self._forget(now)

    def take(self, count: int, now: float) -> None:
        """So many of those that were added last do not count after all."""
        self._forget(now)
        while count > 0 and self._buckets:
            last, there = self._buckets.pop()
            if there > count:
                self._buckets.append((last, there - count))
            taken = min(count, there)
            self._total -= taken
            count -= taken

    def total(self, now: float) -> int:
        self._forget(now)
        return self._total

    def rate_while_busy(self, now: float) -> float | None:
        """How many a second, while there were any. None unless they spread over a sixth of the time: a burst shows no rate."""
        self._forget(now)
        if not self._buckets or self._buckets[-1][0] - self._buckets[0][0] < BUCKETS // 6:
            return None
        return self._total / (len(self._buckets) * self._width)

    def clear(self) -> None:
        self._buckets.clear()
        self._total = 0

    def _forget(self, now: float) -> None:
        oldest = int(now / self._width) - BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            self._total -= self._buckets.popleft()[1]
