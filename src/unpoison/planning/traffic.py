"""How many retries does a share of failing messages make?

In a steady state, delays do not change that number: they move retries, and each of them still comes.
"""

from dataclasses import dataclass


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
