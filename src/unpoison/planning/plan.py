"""Computes what retry settings do, on an ordinary day and in an outage.

The delays are those of the real Backoff. Under jitter the time of a start is a sum of random delays, so messages are
simulated; the same seed gives the same answer. Times are seconds after the first failure, without the running time of the
handler. In a steady state delays do not change how many retries there are: they move retries, and each of them still comes.
"""

import bisect
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from unpoison.model.backoff import Backoff

SIMULATED = 10_000
DRAWS = 300_000
"""With very many attempts fewer messages are simulated, so that an answer comes within seconds."""

Times = Sequence[float]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """By when half, 90 % and 99 % have started, and the latest that is possible."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Step:
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
        """How many retries there are to each message that arrives, at the end of an outage of so many seconds.

        All messages fail then, and those that arrived long enough ago have come back. It only grows with the outage.
        """
        return sum(_share(times, outage) for times in self.starts)

    def dead_share(self, outage: float) -> float:
        """The share of the messages arriving in an outage of so many seconds whose last start falls into it."""
        if not self.starts:
            return 1.0  # the first attempt is the last one
        if outage <= 0:
            return 0.0
        return math.fsum(max(0.0, outage - time) for time in self.starts[-1]) / len(self.starts[-1]) / outage


def schedule(backoff: Backoff, retries: int, seed: int, messages: int = SIMULATED) -> Schedule:
    """The retries of a message under this backoff, from so many simulated ones."""
    needed = max(1, min(messages, DRAWS // max(1, retries))) if backoff.jitter else 1
    starts = simulated(backoff, retries, needed, seed)
    steps, latest = [], 0.0
    for attempt, times in enumerate(starts, start=1):
        most = backoff.ceiling(attempt).total_seconds()
        latest += most
        steps.append(Step(attempt + 1, 0.0 if backoff.jitter else most, most, _percentiles(times, latest)))
    return Schedule(tuple(steps), starts)


def simulated(backoff: Backoff, retries: int, messages: int, seed: int) -> tuple[Times, ...]:
    """For each retry, when each of so many messages starts it that all failed at 0. Sorted by time."""
    draw = random.Random(seed).random  # noqa: S311 - no secret: the same seed must give the same picture
    clocks, starts = [0.0] * messages, []
    for attempt in range(1, retries + 1):
        if backoff.jitter:
            clocks = [clock + backoff.delay(attempt, draw()).total_seconds() for clock in clocks]
        else:
            clocks = [clocks[0] + backoff.delay(attempt, 0.0).total_seconds()] * messages  # all are alike
        starts.append(sorted(clocks))
    return tuple(starts)


@dataclass(frozen=True, slots=True)
class Burst:
    """The starts of messages that all failed at the same moment, in order."""

    messages: int
    times: Times

    def busiest(self, window: float) -> int:
        """The most starts within any stretch of so many seconds."""
        most, first = 0, 0
        for place, time in enumerate(self.times):
            while self.times[first] <= time - window:
                first += 1
            most = max(most, place - first + 1)
        return most

    def histogram(self, buckets: int, until: float) -> list[int]:
        """How many start in each of so many equal stretches from 0 on; a start at the very end is in the last one."""
        counts = [0] * buckets
        for time in self.times:
            counts[min(buckets - 1, int(time / until * buckets)) if until > 0 else 0] += 1
        return counts


def burst(backoff: Backoff, retries: int, messages: int, seed: int, *, jitter: bool) -> Burst:
    """What such messages do with this backoff, were its jitter on or off."""
    starts = simulated(msgspec.structs.replace(backoff, jitter=jitter), retries, messages, seed)
    return Burst(messages, sorted(time for times in starts for time in times))


def _percentiles(times: Times, latest: float) -> Percentiles:
    """`times` are sorted. No start comes after `latest`, which differs from a sum of floats by rounding at most."""
    p50, p90, p99 = (min(latest, times[math.ceil(len(times) * share) - 1]) for share in (0.50, 0.90, 0.99))
    return Percentiles(p50, p90, p99, latest)


def _share(times: Times, until: float) -> float:
    """The share of the times, which are sorted, that come before `until`."""
    return bisect.bisect_left(times, until) / len(times)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages in a second, and the share of them (0 to 1) whose first attempt fails."""

    rate: float
    failing: float


@dataclass(frozen=True, slots=True)
class Load:
    """What comes on top of the traffic, in a second. `amplification` is the retries as a share of the traffic: 0.15 is +15 %."""

    retries: float
    dead: float
    amplification: float


def worst_case(traffic: Traffic, retries: int) -> Load:
    """Each failing message fails all its retries: a bug that looks transient, a record that is gone."""
    failing = traffic.rate * traffic.failing
    return _load(traffic, failing * retries, failing)


def same_rate_case(traffic: Traffic, retries: int) -> Load:
    """Each retry fails at the same rate as the first attempt did: failures that have nothing to do with the message."""
    added, left = 0.0, traffic.rate * traffic.failing
    for _ in range(retries):
        added += left
        left *= traffic.failing
    return _load(traffic, added, left)


def _load(traffic: Traffic, retries: float, dead: float) -> Load:
    return Load(retries, dead, retries / traffic.rate if traffic.rate else 0.0)


TOGETHER = 500
"""How many messages fail at the same moment where the spreading of retries is looked at."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked about: a consumer's limits, and what may happen to it. Times are seconds; None means no limit."""

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
    """The answer. `in_outage` has the retries at the end of the outage, where they are most, and the mean of its dead letters."""

    scenario: Scenario
    worst: Load
    same_rate: Load
    in_outage: Load
    schedule: Schedule
    jittered: Burst
    unjittered: Burst

    @property
    def burst(self) -> Burst:
        """The one that the settings lead to."""
        return self.jittered if self.scenario.backoff.jitter else self.unjittered


def plan(scenario: Scenario) -> Plan:
    """Work it all out. Pure: the same scenario gives the same plan."""
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
