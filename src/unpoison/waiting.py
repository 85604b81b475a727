"""How long does a message wait for its next start, when the failing side may have asked for a time of its own?"""

from datetime import timedelta

from unpoison.backoff import Backoff

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
