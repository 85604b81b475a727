"""Brings a source back to its speed after a pause, so that its backlog does not fall on what has only just recovered.

The source begins slowly and doubles each second, up to twice the rate that it had before the pause. That limit ends when the
backlog is gone, and grows if the backlog lasts for so long that there must be more traffic than before.
"""

import math

from unpoison.control.counting import RecentCount
from unpoison.control.turns import growth_of_traffic

MEASURED_OVER = 60.0
"""Seconds over which the rate before a pause is measured."""
FIRST_RATE = 0.1
"""The share of the earlier rate with which a source begins."""
LEAST_RATE = 1.0
MOST_RATE = 1_000_000.0
"""Where no earlier rate is known, the source is at full speed once it has doubled up to here."""
AT_MOST = 2.0
"""Times the earlier rate, until the backlog is gone."""
GONE_AFTER = 2.0
"""Seconds for which a source must have had fewer messages than were asked for: what reads ahead has few at first."""


class Pace:
    """How many messages of one source may start after a pause."""

    def __init__(self) -> None:
        self._starts = RecentCount(MEASURED_OVER)
        self._earlier: float | None = None
        """The last rate that is known: a pause that comes too soon after another one shows none."""
        self._paused_at = self._waited = 0.0
        """When the first of the pauses began from which it has not recovered yet, and how long ago that was when it went on."""
        self._since: float | None = None
        """When the source began again; None while there is no limit."""
        self._is_paused = False
        self._tokens = self._counted_at = 0.0
        self._short_since: float | None = None
        """Since when the source has had fewer messages than were asked for."""

    @property
    def is_limited(self) -> bool:
        return self._since is not None

    def started(self, count: int, now: float) -> None:
        """What a limit allows shows no rate: it may be twice the usual one."""
        if self._since is None:
            self._starts.add(count, now)
        self._tokens -= count

    def not_started(self, count: int, now: float) -> None:
        """So many of those that were to start did not."""
        if self._since is None:
            self._starts.take(count, now)

    def rate(self, now: float) -> float | None:
        """Starts per second, as far as is known."""
        is_usual = self._since is None and not self._is_paused  # else those that were started are probes
        return (self._starts.rate_while_busy(now) if is_usual else None) or self._earlier

    def learn(self, rate: float) -> None:
        """The rate that the source had before this process began. Anything may be told."""
        if self._earlier is None and 0 < rate < MOST_RATE:
            self._earlier = rate

    def measure(self, now: float) -> None:
        """The source is paused: this was its rate."""
        if self._since is None:
            self._earlier, self._paused_at = self.rate(now), now
        self._since, self._is_paused = None, True

    def begin(self, now: float) -> None:
        """The pause is over."""
        self._since = self._counted_at = now
        self._is_paused = False
        self._waited = now - self._paused_at
        self._starts.clear()
        self._tokens, self._short_since = 1.0, None

    def room(self, now: float) -> int | None:
        """How many messages may start now; None if there is no limit."""
        if self._since is None:
            return None
        rate = self._rate(now)
        if rate >= MOST_RATE:
            self._since = None
            return None
        self._tokens = min(self._tokens + rate * max(0.0, now - self._counted_at), max(1.0, rate / 10))
        self._counted_at = now
        return max(0, int(self._tokens))

    def next_start_in(self, now: float) -> float:
        """Seconds until another message may start."""
        return 0.0 if self._since is None else max(0.0, (1.0 - self._tokens) / self._rate(now))

    def fetched(self, asked: int, got: int, now: float) -> None:
        """The source was asked for so many messages, and had so many. If it has had fewer for a while, the backlog is gone."""
        if got >= asked:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= GONE_AFTER:
            self._since = None

    def _rate(self, now: float) -> float:
        assert self._since is not None  # noqa: S101 - asked only while there is a limit
        growth = math.exp2(min(40.0, max(0.0, now - self._since)))
        if self._earlier is None:
            return LEAST_RATE * growth
        most = AT_MOST * self._earlier * growth_of_traffic(self._since, self._waited, now)
        return min(most, max(LEAST_RATE, FIRST_RATE * self._earlier) * growth)
