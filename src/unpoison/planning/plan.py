"""What will these settings do, on an ordinary day and when everything fails?"""

from dataclasses import dataclass

from unpoison.backoff import Backoff
from unpoison.planning.schedule import Burst, Schedule, burst, schedule
from unpoison.planning.traffic import Load, Traffic, same_rate_case, worst_case

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
