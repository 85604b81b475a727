"""Computes what retry settings do, on an ordinary day and in an outage, if nothing else holds retries back.

The delays are those of the real Backoff. Under jitter the time of a start is a sum of random delays, so messages are
simulated; the same seed gives the same answer. Times are seconds after the first failure, without the running time of the
handler. Delays do not make retries fewer in the long run: each still comes, only later. Nothing is read, sent or run here.
"""

import bisect
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from unpoison.model.backoff import Backoff
from unpoison.model.wording import counted

SIMULATED = 10_000
DRAWS = 300_000
"""Delays drawn at most: with many attempts fewer messages are simulated, so that the answer comes within seconds."""

Times = Sequence[float]


class Percentiles(NamedTuple):
    """By when half, 90 % and 99 % have started, and the latest that is possible."""

    p50: float
    p90: float
    p99: float
    max: float


class Step(NamedTuple):
    """One retry: the attempt that it is, the range its delay is drawn from, and when it starts."""

    attempt: int
    least: float
    most: float
    start: Percentiles


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every retry of a message that never succeeds. `last` is when it is given up, short of the last run of its handler."""

    steps: tuple[Step, ...]
    starts: tuple[Times, ...]
    """For each retry, when each of the simulated messages starts it."""

    @property
    def last(self) -> Percentiles:
        return self.steps[-1].start if self.steps else Percentiles(0.0, 0.0, 0.0, 0.0)

    def pending(self, outage: float) -> float:
        """Retries per arriving message at the end of an outage of so many seconds, in which all fail. Grows with the outage."""
        return sum(bisect.bisect_left(times, outage) / len(times) for times in self.starts)

    def dead_share(self, outage: float) -> float:
        """Of the messages that arrive in an outage of so many seconds, the share whose last attempt falls into it."""
        if not self.starts:
            return 1.0  # the first attempt is the last one
        if outage <= 0:
            return 0.0
        return math.fsum(max(0.0, outage - time) for time in self.starts[-1]) / len(self.starts[-1]) / outage


def schedule(backoff: Backoff, retries: int, seed: int, messages: int = SIMULATED) -> Schedule:
    """The retries of a message under this backoff, simulated."""
    needed = max(1, min(messages, DRAWS // max(1, retries))) if backoff.jitter else 1
    starts = simulated(backoff, retries, needed, seed)
    steps, latest = [], 0.0
    for attempt, times in enumerate(starts, start=1):
        most = backoff.ceiling(attempt).total_seconds()
        latest += most
        steps.append(Step(attempt + 1, 0.0 if backoff.jitter else most, most, _percentiles(times, latest)))
    return Schedule(tuple(steps), starts)


def simulated(backoff: Backoff, retries: int, messages: int, seed: int) -> tuple[Times, ...]:
    """For each retry, the sorted times at which messages start it that all failed at 0."""
    draw = random.Random(seed).random  # noqa: S311 - no secret: the same seed must give the same picture
    clocks, starts = [0.0] * messages, []
    for attempt in range(1, retries + 1):
        if backoff.jitter:
            clocks = [clock + backoff.delay(attempt, draw()).total_seconds() for clock in clocks]
        else:
            clocks = [clocks[0] + backoff.delay(attempt, 0.0).total_seconds()] * messages  # all are alike
        starts.append(sorted(clocks))
    return tuple(starts)


def burst(backoff: Backoff, retries: int, messages: int, seed: int, *, jitter: bool) -> Times:
    """The starts of messages that all failed at the same moment, in order, with the jitter of this backoff switched on or off."""
    starts = simulated(msgspec.structs.replace(backoff, jitter=jitter), retries, messages, seed)
    return sorted(time for times in starts for time in times)


def busiest(burst: Times, window: float) -> int:
    """The most starts within any window of so many seconds."""
    most, first = 0, 0
    for place, time in enumerate(burst):
        while burst[first] <= time - window:
            first += 1
        most = max(most, place - first + 1)
    return most


def histogram(burst: Times, buckets: int, until: float) -> list[int]:
    """How many start in each of so many equal intervals from 0 to `until`."""
    counts = [0] * buckets
    for time in burst:
        counts[min(buckets - 1, int(time / until * buckets)) if until > 0 else 0] += 1
    return counts


def _percentiles(times: Times, latest: float) -> Percentiles:
    """`times` are sorted. No start comes after `latest`, which differs from a sum of floats by rounding at most."""
    p50, p90, p99 = (min(latest, times[math.ceil(len(times) * share) - 1]) for share in (0.50, 0.90, 0.99))
    return Percentiles(p50, p90, p99, latest)


class Traffic(NamedTuple):
    """Messages in a second, and the share of them (0 to 1) whose first attempt fails."""

    rate: float
    failing: float


class Load(NamedTuple):
    """What comes on top of the traffic, in a second. `amplification` is the retries as a share of the traffic: 0.15 is +15 %."""

    retries: float
    dead: float
    amplification: float


def worst_case(traffic: Traffic, retries: int) -> Load:
    """Each failing message fails all its retries too: a bug that looks transient, a record that is gone."""
    failing = traffic.rate * traffic.failing
    return _load(traffic, failing * retries, failing)


def same_rate_case(traffic: Traffic, retries: int) -> Load:
    """Each retry fails at the same rate as a first attempt: the failures do not depend on the message."""
    added, left = 0.0, traffic.rate * traffic.failing
    for _ in range(retries):
        added += left
        left *= traffic.failing
    return _load(traffic, added, left)


def _load(traffic: Traffic, retries: float, dead: float) -> Load:
    return Load(retries, dead, retries / traffic.rate if traffic.rate else 0.0)


TOGETHER = 500
"""How many messages fail at the same moment in the example of a burst."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A consumer's limits, and what may happen to it. Times are seconds; None means no limit."""

    traffic: Traffic
    attempts: int
    backoff: Backoff
    outage: float = 60.0
    max_age: float | None = None
    seed: int = 0

    @property
    def retries(self) -> int:
        return self.attempts - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """`in_outage` has the retries at the end of the outage, when they are most, and the mean of its dead letters."""

    scenario: Scenario
    worst: Load
    same_rate: Load
    in_outage: Load
    schedule: Schedule
    jittered: Times
    unjittered: Times


def plan(scenario: Scenario) -> Plan:
    traffic, backoff, retries, seed = scenario.traffic, scenario.backoff, scenario.retries, scenario.seed
    times = schedule(backoff, retries, seed)
    pending = times.pending(scenario.outage)
    return Plan(
        scenario=scenario,
        worst=worst_case(traffic, retries),
        same_rate=same_rate_case(traffic, retries),
        in_outage=Load(traffic.rate * pending, traffic.rate * times.dead_share(scenario.outage), pending),
        schedule=times,
        jittered=burst(backoff, retries, TOGETHER, seed, jitter=True),
        unjittered=burst(backoff, retries, TOGETHER, seed, jitter=False),
    )


# Warnings about settings that make an outage worse. Each remedy names its price: fewer attempts mean more dead letters, longer
# delays mean later ones, and jitter spreads retries without making them fewer.


_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def number(value: float, digits: int = 3) -> str:
    """Significant digits, and all before the point: 2,500; 52.6; 0.125; <0.001."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.{digits}g}"


def per_second(value: float) -> str:
    return f"{number(value)}/s"


def percent(share: float) -> str:
    return f"{number(share * 100)} %"


def lasting(seconds: float, digits: int = 3) -> str:
    """0.35 s, 15 s, 2 min, 1.5 h."""
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
"""Retries should add no more than this to the traffic. It is the retry budget of a consumer too, unless that is changed; what is
computed here knows neither budget nor breaker."""

INSTANT = 0.1
"""Seconds: starts within this time hit a dependency all at once."""


class Warned(NamedTuple):
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
            f"+{percent(load.amplification)}, against something that is down already, unless the breaker stops them. "
            "A longer base and max carry retries past the outage, and fewer messages become dead letters. "
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
        f"over the {percent(ADVISED_SHARE)} that the retry budget starts by default: the others wait. {remedy}",
    )


def _at_once(plan: Plan) -> Iterator[Warned]:
    if plan.scenario.retries and plan.schedule.last.max == 0:
        yield Warned(
            "no-delay",
            f"Nothing waits between attempts: all {plan.scenario.attempts} meet the same failure, one right after the other. "
            "Set a delay, for example Backoff.exponential().",
        )


def _together(plan: Plan) -> Iterator[Warned]:
    alone, spread = busiest(plan.unjittered, INSTANT), busiest(plan.jittered, INSTANT)
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
