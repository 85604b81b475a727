"""Warns about settings that make an outage worse, and says what would help.

Each remedy names its price: fewer attempts mean more dead letters, longer delays mean later ones, and jitter spreads
retries without making them fewer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from unpoison.model.backoff import Backoff
from unpoison.model.wording import counted
from unpoison.planning.plan import TOGETHER, Plan

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def number(value: float, digits: int = 3) -> str:
    """The digits that count, and all before the point: 2,500; 52.6; 0.125. Less than a thousandth is said to be that."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.{digits}g}"


def per_second(value: float) -> str:
    return f"{number(value)}/s"


def percent(share: float) -> str:
    return f"{number(share * 100)} %"


def lasting(seconds: float, digits: int = 3) -> str:
    """0.35 s, 15 s, 2 min, 1.5 h: the largest unit of which there is one at least."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{number(seconds / size, digits)} {unit}"


def described(backoff: Backoff) -> str:
    """A backoff in words: exponential, base 1 s, max 1 min, full jitter."""
    if backoff.delays:
        kind = f"delays {', '.join(map(lasting, backoff.delays))}"
    elif backoff.max == 0:
        return "no delay"
    elif backoff.base == backoff.max:
        kind = f"always {lasting(backoff.base)}"
    else:
        factor = "" if backoff.factor == 2 else f", factor {number(backoff.factor)}"
        kind = f"exponential, base {lasting(backoff.base)}, max {lasting(backoff.max)}{factor}"
    return f"{kind}, {'full' if backoff.jitter else 'no'} jitter"


ADVISED_SHARE = 0.20
"""Retries should add no more than this to the traffic. It is advice: no setting holds them to it."""

INSTANT = 0.1
"""Starts within so many seconds hit a dependency as one blow."""


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning. `name` is for programs, `text` for people."""

    name: str
    text: str


def warnings(plan: Plan) -> list[Warned]:
    """What a person should know about this plan, the worst first."""
    return [*_in_outage(plan), *_failing(plan), *_at_once(plan), *_together(plan), *_too_old(plan)]


def _in_outage(plan: Plan) -> Iterator[Warned]:
    load = plan.in_outage
    if _is_over(load.amplification):
        yield Warned(
            "outage",
            f"In a full outage of {lasting(plan.scenario.outage)} retries come to {per_second(load.retries)}, "
            f"+{percent(load.amplification)}, against something that is down already; {percent(ADVISED_SHARE)} is a good limit. "
            "A longer base and max carry retries past the outage, and fewer messages die of it. "
            "Fewer attempts make fewer retries too, and more dead letters.",
        )


def _failing(plan: Plan) -> Iterator[Warned]:
    if not _is_over(plan.worst.amplification):
        return
    failing = plan.scenario.traffic.failing
    fitting = next((n for n in range(plan.scenario.retries - 1, 0, -1) if not _is_over(failing * n)), 0)
    if fitting:
        remedy = f"With {counted(fitting + 1, 'attempt')} it would be +{percent(failing * fitting)}."
    else:
        remedy = "With so many failing a single retry each is too much: find out why they fail before retrying more."
    yield Warned(
        "failing",
        f"With {percent(failing)} failing, retries may come to +{percent(plan.worst.amplification)} of the traffic, "
        f"over the {percent(ADVISED_SHARE)} that is a good limit. {remedy}",
    )


def _at_once(plan: Plan) -> Iterator[Warned]:
    if plan.scenario.retries and plan.schedule.last.max == 0:
        yield Warned(
            "no-delay",
            f"Nothing waits between attempts: all {plan.scenario.attempts} meet the same failure, one right after the other. "
            "Set a delay, for example Backoff.exponential().",
        )


def _together(plan: Plan) -> Iterator[Warned]:
    alone, spread = plan.unjittered.busiest(INSTANT), plan.jittered.busiest(INSTANT)
    if not plan.scenario.backoff.jitter and alone > spread:
        yield Warned(
            "no-jitter",
            f"Without jitter, messages that fail together come back together: of {TOGETHER}, {alone:,} start within "
            f"{lasting(INSTANT)}; with jitter {spread:,}. Set jitter=True.",
        )


def _too_old(plan: Plan) -> Iterator[Warned]:
    """A message is given up at the first failure past max_age, so the start before the last must come sooner."""
    age, steps = plan.scenario.max_age, plan.schedule.steps
    if age is not None and len(steps) > 1 and steps[-2].start.max >= age:
        yield Warned(
            "max-age",
            f"The delays before attempt {steps[-2].attempt} add up to as much as {lasting(steps[-2].start.max)}, and max_age is "
            f"{lasting(age)}: a message may be given up before attempt {steps[-1].attempt}. Raise max_age or shorten delays.",
        )


def _is_over(share: float) -> bool:
    """Rounded, since 3 * 0.05 * 4 / 3 is a little more than a fifth."""
    return round(share, 9) > ADVISED_SHARE
