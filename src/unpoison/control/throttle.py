"""Slows a source down when what it depends on asks for it.

One throttled message waits by itself: another tenant's quota is not used up. Several of them within seconds mean that the source
is too fast for the dependency: then nothing starts before the time that was asked for, and after it the source begins at half
its rate and grows by a tenth each second.
"""

import math
from typing import NamedTuple

from unpoison.control.counting import RecentCount
from unpoison.control.evidence import SAMPLES, Evidence

MESSAGES, WITHIN = 3, 10.0
MAX_DEPENDENCIES = 1_000
LONGEST = 60.0
GROWTH = 1.1
LEAST_RATE = 0.1
"""Starts per second, however slow the source was."""
SETTLES = 1.0
"""Seconds after a source was slowed in which what is throttled had started before. It says nothing about the new pace."""


class _Throttled(NamedTuple):
    """When a message was throttled last, and how the dependency said so."""

    at: float
    error: str


class Throttle:
    """The pace of one source."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, _Throttled]] = {}
        """By dependency, the messages that were throttled on it lately."""
        self.evidence: Evidence | None = None
        """Why it was slowed last."""
        self._starts = RecentCount(WITHIN)
        self._measured, self._is_measured = 0.0, False
        """Starts per second before it was slowed; whether all of them were counted rather than allowed."""
        self._not_before = 0.0
        self._since: float | None = None
        """When the slow start begins or began; None while there is no limit."""
        self._slowed_at = self._told_until = float("-inf")
        """When it was slowed last, and until when it was told that nothing starts."""
        self._counted_at = self._tokens = 0.0

    @property
    def is_slowed(self) -> bool:
        return self._since is not None

    def throttled(self, message: str, dependency: str, retry_after: float | None, now: float, error: str = "") -> bool:
        """A message was throttled. True if the source slows down because of it, or must wait for longer than was told."""
        asked = self._asked.pop(dependency, {})
        if len(self._asked) >= MAX_DEPENDENCIES:
            del self._asked[next(iter(self._asked))]  # the one that throttled longest ago
        self._asked[dependency] = asked
        asked[message] = _Throttled(now, error)
        for each in [each for each, (at, _) in asked.items() if at <= now - WITHIN]:
            del asked[each]
        if len(asked) < MESSAGES:
            return False
        del self._asked[dependency]
        errors = tuple(dict.fromkeys(each.error for each in asked.values()))[:SAMPLES]
        self.evidence = Evidence(dependency, min(each.at for each in asked.values()), len(asked), errors)
        is_new = self._since is None or now >= max(self._since, self._slowed_at + SETTLES)
        if is_new:
            self._is_measured = self._since is None
            self._measured, self._slowed_at = max(LEAST_RATE, self._rate_until(now)), now
        wait = min(LONGEST, max(0.0, retry_after or 0.0))
        self._not_before = max(self._not_before, now + wait)
        self._since = self._counted_at = self._not_before
        self._tokens = 1.0
        if not is_new and self._not_before < self._told_until + SETTLES:
            return False
        self._told_until = self._not_before
        return True

    def started(self, count: int, now: float) -> None:
        self._starts.add(count, now)
        self._tokens -= count

    def not_started(self, count: int, now: float) -> None:
        """So many of those that were to start did not: they were taken back because the source was slowed."""
        self._starts.take(count, now)
        if self._is_measured and now - self._slowed_at < SETTLES:
            self._measured = max(LEAST_RATE, self._starts.total(now) / WITHIN)

    def room(self, now: float) -> int | None:
        """How many messages may start now; None if there is no limit."""
        if self._since is None:
            return None
        if now < self._since:
            return 0
        rate = self._rate(now)
        if rate >= 2 * self._measured:
            self._since = None
            return None
        self._tokens = min(self._tokens + rate * (now - self._counted_at), max(1.0, rate))
        self._counted_at = now
        return max(0, int(self._tokens))

    def next_start_in(self, now: float) -> float:
        """Seconds until the next message may start; 0 if one may start now."""
        if self._since is None:
            return 0.0
        if now < self._since:
            return self._since - now
        return max(0.0, (1.0 - self._tokens) / self._rate(now))

    def _rate(self, now: float) -> float:
        assert self._since is not None  # noqa: S101 - asked only while the source is slowed
        return self._measured / 2 * math.pow(GROWTH, min(60.0, now - self._since))

    def _rate_until(self, now: float) -> float:
        """Starts per second, measured; of a source that is slowed already, those that it was allowed."""
        started = self._starts.total(now) / WITHIN
        if self._since is None:
            return started
        allowed = self._rate(now)
        return allowed if now - self._since < WITHIN else min(allowed, started)
