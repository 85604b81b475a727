"""Bounds how much of the traffic may be retries, so that retrying does not multiply the load on what already fails."""

FLOOR = 10.0
"""Retries per second that are always allowed."""
BURST = 1.0
"""Seconds whose allowance may be saved up and used at once."""


class RetryBudget:
    """Allows retries up to a share of the first starts, and never fewer than `floor` a second."""

    def __init__(self, share: float, floor: float = FLOOR) -> None:
        self.share, self._floor = share, floor
        self._tokens, self._firsts = floor * BURST, 0
        self._since: float | None = None
        self._rate = floor
        """Retries per second that are allowed at present."""

    def first_starts(self, count: int) -> None:
        self._firsts += count

    def not_started(self, count: int) -> None:
        """So many first starts did not happen after all."""
        self._firsts = max(0, self._firsts - count)

    def grant(self, wanted: int, now: float) -> int:
        """How many of these retries may start now."""
        self._accrue(now)
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

    @property
    def seconds_each(self) -> float:
        """How far apart retries are that wait for their turn."""
        return 1.0 / self._rate

    def left(self, now: float) -> float:
        """How much of what may be saved up is left, from 0 to 1. Changes nothing, so that any thread may ask."""
        tokens, firsts, since = self._tokens, self._firsts, self._since
        passed = 0.0 if since is None else max(0.0, now - since)
        earned = max(self.share * firsts, self._floor * passed) if passed else 0.0
        most = max(1.0, BURST * max(self._rate, self._floor))
        return max(0.0, min(1.0, (tokens + earned) / most))

    def divide_floor(self, consumers: int) -> None:
        """So many consumers share what is always allowed."""
        self._floor = FLOOR / max(1, consumers)

    def _accrue(self, now: float) -> None:
        if self._since is None or now < self._since:  # the first time, or a clock that was set back
            self._since, self._firsts = now, 0
            return
        passed = now - self._since
        if passed <= 0:
            return
        earned = max(self.share * self._firsts, self._floor * passed)
        rate = earned / passed
        self._rate += (rate - self._rate) * min(1.0, passed)
        self._tokens = min(self._tokens + earned, max(1.0, BURST * max(self._rate, rate, self._floor)))
        self._firsts, self._since = 0, now
