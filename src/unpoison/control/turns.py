"""When does the turn of a message come that must wait, because only so many may start each second?

It is put off once, to when its turn comes: asking again and again would cost the broker a copy each time.
"""

import math

LONGEST_WAIT = 600.0
"""Seconds for which a message is put off at most, before its turn is looked at again."""
BURST = 1.0
"""Seconds whose starts may be saved up and used at once."""
MORE_AFTER = 60.0
"""Seconds, and half as long again as was waited: a backlog that is not gone by then is larger than the earlier traffic."""

MOST_WAITED = 3_600.0
"""Seconds of waiting that count: what has worked for an hour and a half again can take more, however long it was down."""


def growth_of_traffic(since: float, waited: float, now: float) -> float:
    """By how much more may be started than the earlier traffic explains, for a backlog that grew for so long until `since`.

    At twice the earlier rate a backlog is gone after as long as it grew. If it is not, more comes now than before: then it
    doubles each minute, so that no source is held back for ever by what it did before. It does so too once an hour and a half
    is over: nobody wants to wait a day because a source was paused for one.
    """
    late = now - since - (MORE_AFTER + 1.5 * min(waited, MOST_WAITED))
    return math.exp2(min(40.0, max(0.0, late / 60.0)))


def spread_out(seconds: float, spread: float) -> float:
    """From two thirds of so many seconds up to all of them, by a `spread` from 0 up to 1. With less than two thirds of the
    longest wait a message could come back three times within ten minutes, and each return may cost the broker a copy."""
    return seconds * (2 + spread) / 3


class Turns:
    """The turns of messages that wait for one thing."""

    def __init__(self) -> None:
        self._last = 0.0

    def wait(self, times: int, spread: float, seconds_each: float, now: float) -> float:
        """Seconds until the turn of the next one, which was put off so many times before: longer each time.

        `spread`, from 0 up to 1, keeps those apart whose turn is too far away.
        """
        self._last = min(max(self._last, now) + seconds_each, now + LONGEST_WAIT)
        least = spread_out(min(LONGEST_WAIT, math.exp2(min(times, 32))), spread)
        return max(least, min(spread_out(LONGEST_WAIT, spread), self._last - now))


class Recovery:
    """Those that waited for a dependency which has just recovered: together with new messages they are at most twice as many as
    it had before: as many start each second as failed on it for the first time while it was down. Where too few did (`is_known`)
    they begin slowly, and double each second. `lasted` is how long it was down."""

    def __init__(self, rate: float, since: float, lasted: float, *, is_known: bool = True) -> None:
        self._rate, self._since, self._lasted, self._is_known = rate, since, lasted, is_known
        self._turns, self._free_at = Turns(), 0.0

    def wait(self, times: int, spread: float, now: float) -> float | None:
        """None if this one may start now, else for how many seconds it is put off."""
        if self._free_at > now:
            return self.turn(times, spread, now)
        self._free_at = max(self._free_at, now - BURST) + self._seconds_each(now)
        return None

    def turn(self, times: int, spread: float, now: float) -> float:
        """For how many seconds one that must not start now is put off."""
        return self._turns.wait(times, spread, self._seconds_each(now), now)

    def _seconds_each(self, now: float) -> float:
        since = self._since
        growth = growth_of_traffic(since, self._lasted, now) if self._is_known else math.exp2(min(40.0, max(0.0, now - since)))
        return 1.0 / (self._rate * growth)
