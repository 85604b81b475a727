"""Which messages failed on one dependency lately, and do they show an outage?

One message that fails often is never evidence: that is poison. Nor are a few among very many: poison may fail on a dependency
that works for all others.
"""

import enum
from typing import NamedTuple

import msgspec

from unpoison.control.counting import RecentCount

MAX_RECOVERED = 0.1
"""The share of the messages that had failed, and then succeeded, above which there is no outage."""
LEAST_SHARE = 0.005
"""The share of all messages that must fail on it: one poison message in a thousand is no outage."""
CHARGED_AT_MOST = 2
"""How often a message is charged while evidence is gathered."""
LATELY = 0.1
"""The part of the time within which evidence counts that is looked at by itself too: a source that was healthy until a moment ago
would hide that now everything fails."""
MAX_KNOWN = 200
"""Failing messages that are remembered, unless more make an outage. More would not make the evidence stronger."""
SAMPLES = 3


class Evidence(msgspec.Struct, frozen=True):
    """Why a circuit is open: so many different messages failed on the dependency, the first of them at `since`."""

    dependency: str
    since: float
    messages: int
    samples: tuple[str, ...]
    is_named: bool = True

    @property
    def problem(self) -> str:
        """What is wrong, in words. Where the dependency is a guess, no more is known than that many fail alike."""
        return f"{self.dependency} is down" if self.is_named else f"too many messages fail alike ({self.dependency})"


class End(enum.StrEnum):
    """How it is known that an outage is over, if it is."""

    RECOVERED = "recovered"
    """Enough messages at a time have succeeded."""
    QUIET = "quiet"
    """Some have succeeded, and none has failed on it for a while."""
    TOLD = "told"
    """Another consumer has found it out, or a person says so."""
    FORGOTTEN = "forgotten"
    """Nobody knows: nothing was heard of it for too long."""


class Ended(NamedTuple):
    """How many messages of the source ended, without those that failed once more: within the breaker's time, within the latest
    part of it; and how many succeeded ever, before the batch that is being judged."""

    within: int = 0
    lately: int = 0
    successes_before: int = 0


class _Failing(msgspec.Struct):
    first: float
    last: float
    successes: int
    """How many messages of the source had succeeded when it last failed."""
    charged: int = 0
    has_recovered: bool = False


class FailingMessages:
    """Those that failed on a dependency of which it is not known that it is down.

    An outage are `messages` different ones that failed within `within` seconds. `is_named` and `needed_by_all` are the circuit's.
    """

    def __init__(self, dependency: str, messages: int, within: float, *, is_named: bool, needed_by_all: bool) -> None:
        self._dependency, self._messages, self._within = dependency, messages, within
        self._is_named, self._needed_by_all = is_named, needed_by_all
        self._most_known = max(MAX_KNOWN, messages)
        self._failing: dict[str, _Failing] = {}
        """The one that failed last is the last."""
        self._newly_failing, self._newly_failing_lately = RecentCount(within), RecentCount(within * LATELY)
        self._doubted_since: float | None = None
        """Since when other messages fail on it too: from then on, failures are evidence rather than charged."""
        self._samples: list[str] = []

    def add(self, message: str, error: str, now: float, ended: Ended, *, is_first: bool) -> None:
        """A message has failed; `is_first`: it had never failed before."""
        self._newly_failing.add(is_first, now)
        self._newly_failing_lately.add(is_first, now)
        while self._failing and self._failing[first := next(iter(self._failing))].last <= now - self._within:
            del self._failing[first]
        seen = self._failing.pop(message, None)
        if seen is None:
            seen = _Failing(now, now, ended.successes_before)
            if len(self._failing) >= self._most_known:
                del self._failing[next(iter(self._failing))]
        seen.last, seen.successes, seen.has_recovered = now, ended.successes_before, False
        self._failing[message] = seen
        if len(self._failing) < 2:
            self._samples.clear()
        if error not in self._samples and len(self._samples) < SAMPLES:
            self._samples.append(error)
        self._doubt(ended, now)

    def recovered(self, message: str) -> None:
        """It has succeeded."""
        if message in self._failing:
            self._failing[message].has_recovered = True

    def are_outage(self, ended: Ended, now: float) -> bool:
        failed = len(self._failing)
        if failed < self._messages:
            return False
        if sum(each.has_recovered for each in self._failing.values()) >= MAX_RECOVERED * failed:
            return False
        if self._needed_by_all:
            return ended.successes_before - self.successes_before() <= MAX_RECOVERED * self._messages
        if max(failed, self._newly_failing.total(now)) < LEAST_SHARE * ended.within:
            return False
        return self._is_named or self._are_half(ended, now)

    def is_charged(self, message: str, now: float, *, is_charged: bool) -> bool:
        """Whether its failure counts as an attempt; if so, and if `is_charged`, that is noted."""
        seen = self._failing[message]
        is_evidence = self._doubted_since is not None and now - self._doubted_since <= self._within
        if is_evidence and (self._is_named or seen.charged >= CHARGED_AT_MOST):
            return False
        seen.charged += is_charged
        return True

    def refund(self, message: str) -> int:
        """How many charges too many the message has, from before it was known that others fail as well."""
        seen = self._failing.get(message)
        if seen is None or seen.charged <= CHARGED_AT_MOST:
            return 0
        refund, seen.charged = seen.charged - CHARGED_AT_MOST, CHARGED_AT_MOST
        return refund

    def successes_before(self) -> int:
        """How many messages of the source had succeeded when the earliest of the latest failures came."""
        latest = list(self._failing.values())[-self._messages :]
        return min((each.successes for each in latest), default=0)

    def evidence(self) -> Evidence:
        since = min(each.first for each in self._failing.values())
        return Evidence(self._dependency, since, len(self._failing), tuple(self._samples), self._is_named)

    def clear(self) -> None:
        self._failing.clear()
        self._samples.clear()
        self._doubted_since = None

    def _doubt(self, ended: Ended, now: float) -> None:
        """Note since when it may be an outage rather than poison. A guess needs more than two messages that fail alike."""
        failed = len(self._failing)
        least = 2 if self._is_named else max(2, self._messages // 2)
        if failed < least or not (self._is_named or self._are_half(ended, now)):
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = now

    def _are_half(self, ended: Ended, now: float) -> bool:
        """Whether half of all messages failed on it, or half of the latest. Retries do not count: a few are retried often."""
        if 2 * max(len(self._failing), self._newly_failing.total(now)) >= ended.within:
            return True
        new = self._newly_failing_lately.total(now)
        return 2 * new >= max(self._messages, ended.lately)
