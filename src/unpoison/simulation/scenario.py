"""What happens to a source in a simulation, and with which of its state machines?"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from unpoison.control.options import ControlOptions
from unpoison.model.backoff import Limits

BEFORE = 60.0
"""Seconds of ordinary traffic before it begins."""
PATIENCE, LEAST_PATIENCE = 4.0, 1_200.0
"""How long a simulation waits for the backlog to go: so many times the length, and at least so many seconds."""
HEADROOM, LEAST_CAPACITY = 6.0, 20.0
"""The workers can handle so many times the rate, and at least so many messages a second, unless said otherwise."""


class Kind(enum.StrEnum):
    """The scenarios."""

    OUTAGE = "outage"
    BAD_DEPLOY = "bad-deploy"
    THROTTLING = "throttling"
    PARTIAL_OUTAGE = "partial-outage"
    POISON = "poison"


class Usual(NamedTuple):
    """What a scenario is like unless said otherwise. `share` is of the traffic; None where all of it is concerned."""

    rate: float
    length: float
    share: float | None


JUDGED_RATE = 100.0
"""The usual rate at most where many messages fail one by one: each failure is judged for real, and that takes its time."""

USUAL = {
    Kind.OUTAGE: Usual(1_000.0, 600.0, None),
    Kind.BAD_DEPLOY: Usual(1_000.0, 600.0, None),
    Kind.THROTTLING: Usual(JUDGED_RATE, 300.0, 0.5),
    Kind.PARTIAL_OUTAGE: Usual(JUDGED_RATE, 600.0, 0.3),
    Kind.POISON: Usual(1_000.0, 600.0, 0.001),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Trouble that begins after BEFORE and lasts for `length` seconds.

    `share` is the share of the messages that fail (poison), that need what is down (partial outage), or of the traffic that the
    dependency takes (throttling). `is_named`: the error tells on which dependency it failed. `capacity` is how many messages
    a second the workers can handle.
    """

    kind: Kind
    rate: float
    length: float
    share: float
    capacity: float
    is_named: bool = True
    seed: int = 0

    @property
    def ends(self) -> float:
        return BEFORE + self.length

    @property
    def latest(self) -> float:
        return self.ends + max(LEAST_PATIENCE, PATIENCE * self.length)

    @property
    def calls_before(self) -> float:
        """Calls a second on the dependency while all is well."""
        return self.rate * (self.share if self.kind is Kind.PARTIAL_OUTAGE else 1.0)

    def is_on(self, now: float) -> bool:
        return BEFORE <= now < self.ends


def usual(
    kind: Kind,
    *,
    rate: float | None = None,
    length: float | None = None,
    share: float | None = None,
    capacity: float | None = None,
    is_named: bool = True,
    seed: int = 0,
    each: bool = False,
) -> Scenario:
    """The scenario with what is usual for it, but for what is given. `each` state machine is to be left out in turn."""
    default = USUAL[kind]
    rate = (min(default.rate, JUDGED_RATE) if each else default.rate) if rate is None else rate
    length = default.length if length is None else length
    share = default.share if share is None else share
    capacity = max(LEAST_CAPACITY, HEADROOM * rate) if capacity is None else capacity
    return Scenario(kind, rate, length, 1.0 if share is None else share, capacity, is_named, seed)


@dataclass(frozen=True, slots=True)
class Variant:
    """A consumer's limits, and which state machines it has.

    The one that slows down when a dependency throttles cannot be turned off. Without `throttle` the consumer does not learn that
    it is throttled: it takes the answer for an ordinary error.
    """

    name: str
    control: ControlOptions
    limits: Limits
    source: str = "orders"
    throttle: bool = True

    @property
    def is_off(self) -> bool:
        return self.control.breaker is None and self.control.budget is None and self.control.admission is None

    def without(self, machine: str) -> "Variant":
        name = f"without {machine}"
        if machine == THROTTLE:
            return replace(self, name=name, throttle=False)
        return replace(self, name=name, control=msgspec.structs.replace(self.control, **{machine: None}))

    def has(self, machine: str) -> bool:
        return self.throttle if machine == THROTTLE else getattr(self.control, machine) is not None


THROTTLE = "throttle"
MACHINES = ("breaker", "budget", "admission")
DECISIVE: dict[Kind, tuple[str, ...]] = {
    Kind.OUTAGE: (),
    Kind.BAD_DEPLOY: (),
    Kind.THROTTLING: (THROTTLE,),
    Kind.PARTIAL_OUTAGE: ("breaker",),
    Kind.POISON: (),
}
"""Machines without which a scenario is always simulated too. The others are seen with `each`, which takes longer."""


def variants(kind: Kind, consumer: Variant, *, each: bool = False) -> Sequence[Variant]:
    """The consumer as it is, without the machines that decide the scenario (or without each in turn), and without any."""
    left_out = [*MACHINES, *([THROTTLE] if kind is Kind.THROTTLING else ())] if each else DECISIVE[kind]
    found = [consumer, *(consumer.without(machine) for machine in left_out if consumer.has(machine))]
    off = replace(
        consumer, name="all off", control=msgspec.structs.replace(consumer.control, breaker=None, budget=None, admission=None)
    )
    off = replace(off, throttle=kind is not Kind.THROTTLING)
    return found if any(each.is_off and each.throttle == off.throttle for each in found) else [*found, off]
