"""How long a message waits before its next attempt, and how far retrying goes.

A Backoff is data: the worker can send it to the consumer, and the same arguments always give the same delay. Randomness comes
in as an argument (`spread`), so the decision core stays pure. `charged_wait` and `uncharged_wait` combine it with the wait
that the failing side has asked for.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from unpoison.errors import ConfigError, seconds

LONGEST = timedelta(days=36_525)
"""A century. A server may ask for any number of seconds, and past a few thousand years dates overflow."""

REACHED_LIMIT = 64

MAX_ATTEMPTS = 5
MAX_AGE = timedelta(hours=24)


def bounded(wait: float) -> timedelta:
    """So many seconds, at least none and at most a century."""
    return timedelta(seconds=min(max(0.0, wait), LONGEST.total_seconds()))


class Backoff(msgspec.Struct, frozen=True):
    """A strategy for the delay after the n-th attempt. Make one with the named constructors.

    The delays grow from `base` by `factor` up to `max`; with `delays` they are taken from that list, whose last
    entry goes on for ever. With `jitter` each is drawn uniformly between 0 and itself ("full jitter"), which
    spreads messages that failed together.
    """

    base: float
    max: float
    factor: float = 2.0
    jitter: bool = True
    delays: tuple[float, ...] = ()

    @classmethod
    def exponential(
        cls,
        base: float | timedelta = 1,
        max: float | timedelta = 60,  # noqa: A002 - the word users read
        factor: float = 2,
        jitter: bool = True,
    ) -> "Backoff":
        """0–1 s, 0–2 s, 0–4 s … up to `max`; exactly 1, 2, 4 … with jitter=False."""
        low, high = seconds(base, "Backoff.exponential(base=…)"), seconds(max, "Backoff.exponential(max=…)")
        if not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            raise ConfigError(f"Backoff factor must be 1 or more, got {factor!r}. Delays below the first one hide outages.")
        if high < low:
            raise ConfigError(f"Backoff max must not be below base, got base={low:g} and max={high:g}. Swap them.")
        return cls(low, high, float(factor), jitter)

    @classmethod
    def fixed(cls, delay: float | timedelta, jitter: bool = False) -> "Backoff":
        """The same delay every time."""
        wait = seconds(delay, "Backoff.fixed(delay)")
        return cls(wait, wait, 1.0, jitter)

    @classmethod
    def immediate(cls) -> "Backoff":
        """No delay: for failures that the next attempt is likely to cure."""
        return cls(0.0, 0.0, 1.0, False)

    @classmethod
    def list(cls, delays: Sequence[float | timedelta], jitter: bool = False) -> "Backoff":
        """These delays in turn; after the last one it goes on with the last."""
        waits = tuple(seconds(delay, "Backoff.list(delays)") for delay in delays)
        if not waits:
            raise ConfigError("Backoff.list needs at least one delay, got none. For no delay use Backoff.immediate().")
        return cls(waits[0], max(waits), 1.0, jitter, waits)

    def ceiling(self, attempt: int) -> timedelta:
        """The longest delay after this attempt (counted from 1)."""
        if self.delays:
            return bounded(self.delays[min(attempt, len(self.delays)) - 1])
        try:
            grown = self.base * self.factor ** (attempt - 1)
        except OverflowError:  # attempt 1,100 with factor 2: far past any max
            grown = self.max if self.base else 0.0
        return bounded(min(self.max, grown))

    def delay(self, attempt: int, spread: float | None = None) -> timedelta:
        """The delay after this attempt (counted from 1).

        With jitter it is drawn at random, unless `spread`, from 0 up to 1, says where in the range it falls.
        """
        ceiling = self.ceiling(attempt)
        if not self.jitter:
            return ceiling
        return ceiling * (random.random() if spread is None else spread)  # noqa: S311 - it spreads load, it guards nothing

    def reached(self, age: timedelta) -> int:
        """The attempt that these delays come to when a message has been failing for so long.

        For failures that are not charged: their attempt number stands still, and their delays must grow all the same.
        """
        attempt, total = 1, self.ceiling(1)
        while total <= age and attempt < REACHED_LIMIT:
            attempt += 1
            total += self.ceiling(attempt)
        return attempt


DEFAULT_BACKOFF = Backoff.exponential()


LEAST_PACE = timedelta(seconds=1)
"""The floor below every backoff, even Backoff.immediate(): uncharged starts settle at one per second at most."""


def charged_wait(backoff: Backoff, attempt: int, spread: float, asked: timedelta | None) -> tuple[timedelta, str]:
    """The wait after a charged attempt and the name of its rule. The number of attempts bounds these."""
    return (backoff.delay(attempt, spread), "backoff") if asked is None else (asked, "retry-after")


def uncharged_wait(
    backoff: Backoff, attempt: int, age: timedelta, spread: float, asked: timedelta | None
) -> tuple[timedelta, str]:
    """The wait after a start that was not charged: what was asked for, and never less than the backoff.

    No number of attempts ends a loop of such starts, so a wait of 0 would start the message thousands of times.
    """
    least = _least_wait(backoff, attempt, age, spread)
    if asked is None:
        return least, "backoff"
    if asked < least:
        return least, f"backoff: longer than the {asked.total_seconds():g} s asked for"
    return asked, "retry-after"


def _least_wait(backoff: Backoff, attempt: int, age: timedelta, spread: float) -> timedelta:
    """Uncharged starts leave the attempt number as it is, so the backoff follows the time that the message has been failing.

    Jitter draws from the upper half of the range: a floor that can be 0 is no floor. Below a short backoff there is a
    second one: as long as the message has been failing so far, up to LEAST_PACE.
    """
    ceiling = backoff.ceiling(max(attempt, backoff.reached(age)))
    return max(ceiling * (1 + spread) / 2 if backoff.jitter else ceiling, min(age, LEAST_PACE))


@dataclass(frozen=True, slots=True)
class Limits:
    """How far retrying goes. None means no limit. `by_policy` is the highest limit that a policy sets, 0 if none does."""

    max_attempts: int | None = MAX_ATTEMPTS
    max_age: timedelta | None = MAX_AGE
    backoff: Backoff = DEFAULT_BACKOFF
    by_policy: int = 0

    @property
    def highest(self) -> int | None:
        """The most attempts that any failure leaves a message."""
        return None if self.max_attempts is None else max(self.max_attempts, self.by_policy)
