"""Which settings of an app lose messages, or make them go round for ever?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields

from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.port.broker import Finding

NAMES = ("endless-retry", "no-age-limit", "no-time-limit", "grace-too-short")

_UNSAID = {field.name: field.default for field in fields(ConsumerOptions)}["timeout"]
"""The default is a net, and says nothing of how long handlers take."""


def findings_of(settings: Settings, consumers: Sequence[ConsumerOptions]) -> Iterator[Finding]:
    for options in consumers:
        yield from _of_limits(options)
        yield from _of_time(settings, options)


def longest_of(consumers: Sequence[ConsumerOptions]) -> float | None:
    """How long a handler may run: infinity if one has no limit, None if there is none."""
    return max((math.inf if each.timeout is None else each.timeout for each in consumers), default=None)


def _of_limits(options: ConsumerOptions) -> Iterator[Finding]:
    limits = options.limits
    if limits.max_age is not None:
        return
    if limits.max_attempts is None:
        yield Finding(
            "endless-retry",
            f"Consumer {options.source!r} has max_attempts=None and max_age=None: a message that always fails is started again "
            f"for ever and never becomes a dead letter.",
            "Set one of them on the consumer:\nmax_attempts=5",
            loses=True,
        )
    else:
        yield Finding(
            "no-age-limit",
            f"Consumer {options.source!r} has max_age=None. Starts that end with RetryLater or Throttled, or by a planned stop, "
            f"are not charged: a message whose starts all end so goes round for ever.",
            "Set a limit on the consumer:\nmax_age=86400",
        )


def _of_time(settings: Settings, options: ConsumerOptions) -> Iterator[Finding]:
    if options.timeout is None:
        ends = "until somebody kills its worker" if options.isolation == "process" else "until the whole process ends"
        yield Finding(
            "no-time-limit",
            f"Consumer {options.source!r} has timeout=None with isolation={options.isolation!r}: a handler that hangs keeps its "
            f"message and its place, {ends}. Once all {options.concurrency} places hang, the source stands still.",
            "Set more than the slowest message needs on the consumer" + _where(options) + ":\ntimeout=300",
        )
    elif options.timeout > settings.grace and options.timeout != _UNSAID:
        yield Finding(
            "grace-too-short",
            f"Consumer {options.source!r} may run a message for {options.timeout:g} s, but a planned stop waits "
            f"{settings.grace:g} s. A handler that takes longer is killed at every deploy, and its message starts anew.",
            f"Wait longer, here and in whatever stops the service (TimeoutStopSec, terminationGracePeriodSeconds):\n"
            f"App(…, grace={options.timeout + 5:g})",
        )


def _where(options: ConsumerOptions) -> str:
    """A thread cannot be ended from outside, so that a limit alone frees the message and not the thread."""
    return "" if options.isolation == "process" else ", and run it in processes, which can be ended (isolation='process')"
