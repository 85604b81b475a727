"""What do the handlers of a simulation meet: who fails, when, and with which error?

Failures are made of real exceptions by the real classifier, as a worker makes them.
"""

import errno
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from unpoison.decide.policy import PoisonPillHandler
from unpoison.errors import Throttled
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery, MessageMetadata
from unpoison.simulation.scenario import BEFORE, Kind, Scenario, Variant

DEPENDENCY = "billing:443"
PLACE = "ConnectionRefusedError in shop.py:ship"
RETRY_AFTER = 5.0
"""Seconds for which the dependency asks when it throttles."""
BURST = 1.0
"""Seconds whose quota can be used at once."""


class Ran(NamedTuple):
    """So many of the messages called the dependency, and these failed, by index."""

    calls: int
    failures: Mapping[int, Failure]


class Trouble(Protocol):
    def run(self, deliveries: Sequence[Delivery], now: float) -> Ran:
        """Handle these, all at this moment."""


def dependency_of(scenario: Scenario, variant: Variant) -> str:
    """What is down, or throttles. In a partial outage it is never what all messages need."""
    return DEPENDENCY if scenario.kind is Kind.PARTIAL_OUTAGE else variant.control.depends_on or DEPENDENCY


def trouble(scenario: Scenario, variant: Variant, weight: float) -> Trouble:
    """Each simulated message stands for `weight` messages."""
    dependency = dependency_of(scenario, variant)
    match scenario.kind:
        case Kind.OUTAGE:
            return AllFail(scenario, _on_dependency(scenario, dependency))
        case Kind.BAD_DEPLOY:
            return AllFail(scenario, _failure(AttributeError("'Order' object has no attribute 'total'")))
        case Kind.THROTTLING:
            refused = (
                _failure(Throttled(RETRY_AFTER, dependency=dependency))
                if variant.throttle
                else _on_dependency(scenario, dependency)
            )
            return Quota(scenario, refused, weight)
        case Kind.PARTIAL_OUTAGE:
            return SomeFail(scenario, _on_dependency(scenario, dependency))
        case Kind.POISON:
            return Poison(scenario, _on_dependency(scenario, dependency))


def _on_dependency(scenario: Scenario, dependency: str) -> Failure:
    failure = _failure(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    name = dependency if scenario.is_named else PLACE
    return msgspec.structs.replace(failure, dependency=name, is_dependency_named=scenario.is_named)


def _failure(error: Exception) -> Failure:
    return PoisonPillHandler().failure(error, MessageMetadata("m"))


class AllFail:
    """Everything fails while the trouble lasts."""

    def __init__(self, scenario: Scenario, failure: Failure) -> None:
        self._scenario, self._failure = scenario, failure

    def run(self, deliveries: Sequence[Delivery], now: float) -> Ran:
        fails = self._scenario.is_on(now)
        return Ran(len(deliveries), dict.fromkeys(range(len(deliveries)), self._failure) if fails else {})


class SomeFail:
    """A share of the messages calls the dependency, which is down while the trouble lasts."""

    def __init__(self, scenario: Scenario, failure: Failure) -> None:
        self._scenario, self._failure = scenario, failure
        self._drawn = Drawn(scenario.share, scenario.seed)

    def run(self, deliveries: Sequence[Delivery], now: float) -> Ran:
        drawn = self._drawn
        found = [at for at, delivery in enumerate(deliveries) if delivery.receipt[0] in drawn]
        return Ran(len(found), dict.fromkeys(found, self._failure) if self._scenario.is_on(now) else {})


class Poison:
    """A share of the messages that arrive while the trouble lasts fails at every start. Each start of any message is a call."""

    def __init__(self, scenario: Scenario, failure: Failure) -> None:
        self._failure, self._drawn = failure, Drawn(scenario.share, scenario.seed)
        self._arriving = range(round(BEFORE * scenario.rate), round(scenario.ends * scenario.rate))

    def run(self, deliveries: Sequence[Delivery], now: float) -> Ran:
        drawn, arriving = self._drawn, self._arriving
        found = [at for at, each in enumerate(deliveries) if each.receipt[0] in drawn and each.receipt[0] in arriving]
        return Ran(len(deliveries), dict.fromkeys(found, self._failure))


class Quota:
    """The dependency takes no more than a share of the traffic while the trouble lasts."""

    def __init__(self, scenario: Scenario, failure: Failure, weight: float) -> None:
        self._scenario, self._failure = scenario, failure
        self._rate = scenario.share * scenario.rate / weight
        self._tokens, self._since = self._rate * BURST, 0.0

    def run(self, deliveries: Sequence[Delivery], now: float) -> Ran:
        self._tokens = min(self._rate * BURST, self._tokens + self._rate * (now - self._since))
        self._since = now
        if not self._scenario.is_on(now):
            return Ran(len(deliveries), {})
        taken = min(len(deliveries), int(self._tokens))
        self._tokens -= taken
        return Ran(len(deliveries), dict.fromkeys(range(taken, len(deliveries)), self._failure))


class Drawn:
    """A share of all message numbers. The same seed draws the same ones."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._draw = share, random.Random(seed).random  # noqa: S311 - no secret: it must be repeatable
        self._known = 0
        self._numbers: set[int] = set()

    def __contains__(self, number: int) -> bool:
        while self._known <= number:
            if self._draw() < self._share:
                self._numbers.add(self._known)
            self._known += 1
        return number in self._numbers
