"""Tells the outage of a dependency from poison, and finds out when it is over.

    closed ── many different messages fail on it, and hardly any of them succeeds when run again ──► open
    open   ── one probe at a time, after 1 s, 2 s, 4 s … 15 s; one succeeds ──► ramp
    ramp   ── 1, 2, 4 … messages at a time; one fails on it again ──► open
    ramp   ── enough at a time have succeeded, or none has failed for a while ──► closed

`Circuit` is that for one dependency. One message that fails often is never evidence: that is poison.
"""

import enum
import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from unpoison.control.counting import RecentCount
from unpoison.errors import ConfigError

MAX_RECOVERED = 0.1
"""The share of the messages that had failed, and then succeeded, above which there is no outage."""
CHARGED_AT_MOST = 2
"""How often a message is charged while evidence is gathered."""
MAX_PROBES = 3
"""Probes that run at the same time: one that outlasts its interval does not block the next."""
RAMP_ENDS = 64
RAMP_LASTS = 30.0
"""Seconds after which a ramp ends though few messages came."""
FORGET_AFTER = 1_200.0
"""Seconds without any failure or probe after which an open circuit closes: every message that waits for it has come due."""
LEAST_SHARE = 0.005
"""The share of the messages that must fail on a dependency: one poison message in a thousand is no outage."""
LONGEST_WAIT = 600.0
GRANT_TAKES = 0.5
MAX_KNOWN = 200
"""Failing messages that are remembered. More would not make the evidence stronger."""
SAMPLES = 3


class Breaker(msgspec.Struct, frozen=True):
    """What counts as an outage: `messages` different messages that failed on one dependency within `within` seconds. While it
    lasts, a message is tried after `first_probe` seconds, and then at intervals that double up to `longest_probe`."""

    messages: int = 10
    within: float = 30.0
    first_probe: float = 1.0
    longest_probe: float = 15.0

    def __post_init__(self) -> None:
        if self.messages < 2:
            raise ConfigError(
                f"Breaker messages must be 2 or more, got {self.messages!r}: one message that fails is poison, not an outage. "
                f"To turn the breaker off use breaker=None."
            )
        if not 0 < self.within < float("inf"):
            raise ConfigError(f"Breaker within must be a number of seconds above 0, got {self.within!r}.")
        if not 0 < self.first_probe <= self.longest_probe < float("inf"):
            given = f"{self.first_probe!r} and {self.longest_probe!r}"
            raise ConfigError(f"Breaker first_probe must be above 0 and at most longest_probe, got {given}.")


class CircuitState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    RAMP = "ramp"


class Charge(enum.Enum):
    """What a failure on a dependency means for its message."""

    CHARGED = enum.auto()
    UNCHARGED = enum.auto()
    """It counts as evidence instead."""
    OUTAGE = enum.auto()
    """The dependency is known to be down: the message waits for a probe."""


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


class Weighed(NamedTuple):
    """What a failure means for its message, and how many of its earlier charges are taken back."""

    charge: Charge
    refund: int = 0


class _Failing(msgspec.Struct):
    first: float
    last: float
    successes: int
    """How many messages of the source had succeeded when it last failed."""
    times: int = 0
    charged: int = 0
    has_recovered: bool = False


class Circuit:
    """The state of one dependency, as one consumer sees it.

    `is_named` says that the dependency is known by name or address; otherwise it is guessed from type and place of the error, and
    more evidence is needed. `needed_by_all`: every message of the source needs it, so a success of any of them speaks against an
    outage.
    """

    def __init__(self, dependency: str, options: Breaker, *, is_named: bool, needed_by_all: bool = False) -> None:
        self.dependency, self.is_named, self.needed_by_all, self._options = dependency, is_named, needed_by_all, options
        self.state = CircuitState.CLOSED
        self.evidence: Evidence | None = None
        self._failing: dict[str, _Failing] = {}
        """Messages that failed on it lately, the latest last."""
        self._failures, self._newly_failing = RecentCount(options.within), RecentCount(options.within)
        self._doubted_since: float | None = None
        """Since when other messages fail on it too: from then on, failures are evidence rather than charged."""
        self._samples: list[str] = []
        self._interval = options.first_probe
        self._probe_at = self._ramp_since = self._heard_at = 0.0
        self._turn_at = self._turn_step = 0.0
        """When the last message comes back that was told when its turn to probe comes, and how far it is from the one before."""
        self._running: set[str] = set()
        self._level = self._succeeded = 0
        self.needs_grant = self._is_granted = False
        """With a fleet, a probe needs a grant: one consumer's probe serves all."""

    def failed(
        self,
        message: str,
        error: str,
        now: float,
        *,
        ended: int = 0,
        successes: int = 0,
        is_charged: bool = True,
        is_first: bool = True,
    ) -> Weighed:
        """A message has failed on the dependency. `ended` is how many messages of the source ended within the options' window,
        `successes` how many had succeeded ever, before the batch that this one was in. `is_first`: it had never failed before."""
        self._running.discard(message)
        self._heard_at = now
        if self.state is CircuitState.RAMP:
            self._open_again(now)
        if self.state is CircuitState.OPEN:
            return Weighed(Charge.OUTAGE, self._refund(message))
        self._note(message, error, now, successes, is_first=is_first)
        self._doubt(ended, now)
        if self._is_outage(ended, successes, now):
            self._open(now)
            return Weighed(Charge.OUTAGE, self._refund(message))
        if self._is_charged(message, now):
            self._failing[message].charged += is_charged
            return Weighed(Charge.CHARGED)
        return Weighed(Charge.UNCHARGED, self._refund(message))

    def recovered(self, message: str, now: float) -> None:
        """A message that had failed on the dependency, or was let through to try it, has succeeded."""
        self._running.discard(message)
        self._heard_at = now
        match self.state:
            case CircuitState.CLOSED:
                if message in self._failing:
                    self._failing[message].has_recovered = True
            case CircuitState.OPEN:
                self.state, self._level, self._succeeded, self._ramp_since = CircuitState.RAMP, 1, 0, now
            case CircuitState.RAMP:
                self._succeeded += 1
                if self._succeeded >= self._level:
                    self._level, self._succeeded = 2 * self._level, 0
                if self._level > RAMP_ENDS:
                    self.close()

    def ended_otherwise(self, message: str, now: float) -> None:
        """A probe has failed for another reason, or was cut off: it decides nothing, and another one may be tried."""
        if message in self._running:
            self._running.discard(message)
            if self.state is CircuitState.OPEN:
                self._probe_at = min(self._probe_at, now + self._options.first_probe)

    def room(self, now: float) -> int | None:
        """How many of the messages that wait for the dependency may start now; None if there is no limit."""
        match self.state:
            case CircuitState.CLOSED:
                return None
            case CircuitState.OPEN:
                is_due = now >= self._probe_at and len(self._running) < MAX_PROBES
                return int(is_due and (self._is_granted or not self.needs_grant))
            case CircuitState.RAMP:
                return max(0, self._level - len(self._running))

    def started(self, messages: Iterable[str], now: float) -> None:
        """These messages, which wait for the dependency, have been started."""
        for message in messages:
            self._running.add(message)
            if self.state is CircuitState.OPEN:
                self._is_granted = False
                self._interval = min(self._options.longest_probe, 2 * self._interval)
                self._probe_at = self._next_probe(now)

    def _next_probe(self, now: float) -> float:
        """At the time for which a message was told to come back, even if this probe came a little late."""
        planned = self._probe_at + self._interval
        return planned if self._interval / 2 < planned - now <= self._interval else now + self._interval

    def next_probe_in(self, now: float) -> float | None:
        """Seconds until the next probe may start; None unless the circuit is open."""
        if self.state is not CircuitState.OPEN:
            return None
        least = GRANT_TAKES if self.needs_grant and not self._is_granted else 0.0
        return max(least, self._probe_at - now)

    def probe_due_in(self, now: float) -> float:
        """Seconds until a probe is due, whoever in the fleet makes it."""
        return max(0.0, self._probe_at - now)

    def grant(self) -> None:
        """This consumer may probe for the whole fleet."""
        self._is_granted = True

    def wait(self, times: int, spread: float, now: float) -> float:
        """Seconds for which a message that waits for the dependency is put off; it was put off so many times before.

        For each probe of the next ten minutes one message comes back, in the order in which they were put off: a failed probe goes
        behind the others. All others are put off for longer and longer, since each return may cost the broker a copy. `spread`,
        from 0 up to 1, keeps them apart.
        """
        if self.state is not CircuitState.OPEN:
            return self._options.first_probe * (1 + spread)
        longest = max(LONGEST_WAIT, self._options.longest_probe)
        turn, step = self._next_turn(now)
        if turn - now <= longest:
            self._turn_at, self._turn_step = turn, step
            return turn - now
        return min(longest, 2 * self._options.longest_probe * math.exp2(min(times, 32))) * (1 + spread) / 2

    def _next_turn(self, now: float) -> tuple[float, float]:
        """When the probe comes that no message is to come back for yet, and how far it is from the one before."""
        if self._turn_at <= now:
            return max(self._probe_at, now + self._options.first_probe), self._interval
        step = min(self._options.longest_probe, 2 * self._turn_step)
        return self._turn_at + step, step

    def expire(self, now: float) -> None:
        """Close it if nothing was heard of it for long, or if its ramp has lasted long enough."""
        since, longest = (self._ramp_since, RAMP_LASTS) if self.state is CircuitState.RAMP else (self._heard_at, FORGET_AFTER)
        if self.state is not CircuitState.CLOSED and now - since > longest:
            self.close()

    def is_idle(self, now: float) -> bool:
        """Whether there is nothing left to know about it."""
        return self.state is CircuitState.CLOSED and now - self._heard_at > self._options.within

    def follow_fleet(self, evidence: Evidence, interval: float, probe_in: float, now: float) -> None:
        """A consumer of the fleet knows of the outage, and probes at this interval."""
        if self.state is CircuitState.CLOSED:
            self.state, self.evidence, self._interval = CircuitState.OPEN, evidence, self._options.first_probe
            self._probe_at = now
        self._heard_at = now
        self._interval = min(self._options.longest_probe, max(self._interval, interval))
        self._probe_at = max(self._probe_at, now + probe_in)

    @property
    def interval(self) -> float:
        return self._interval

    def close(self) -> None:
        """The dependency works again, or a person says so."""
        self.state, self.evidence = CircuitState.CLOSED, None
        self._failing.clear()
        self._samples.clear()
        self._running.clear()
        self._doubted_since, self._interval, self._turn_at = None, self._options.first_probe, 0.0

    def _note(self, message: str, error: str, now: float, successes: int, *, is_first: bool) -> None:
        self._failures.add(1, now)
        self._newly_failing.add(is_first, now)
        oldest = now - self._options.within
        while self._failing and self._failing[first := next(iter(self._failing))].last <= oldest:
            del self._failing[first]
        seen = self._failing.pop(message, None)
        if seen is None:
            seen = _Failing(now, now, successes)
            if len(self._failing) >= MAX_KNOWN:
                del self._failing[next(iter(self._failing))]
        seen.last, seen.successes, seen.times, seen.has_recovered = now, successes, seen.times + 1, False
        self._failing[message] = seen
        if len(self._failing) < 2:
            self._samples.clear()
        if error not in self._samples and len(self._samples) < SAMPLES:
            self._samples.append(error)

    def _doubt(self, ended: int, now: float) -> None:
        """Note since when it may be an outage rather than poison. A guess needs more than two messages that fail alike."""
        failed = len(self._failing)
        least = 2 if self.is_named else max(2, self._options.messages // 2)
        if failed < least or not (self.is_named or self._is_half(ended, now)):
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = now

    def _is_half(self, ended: int, now: float) -> bool:
        """Whether half of all starts that ended lately failed on it."""
        return 2 * self._failures.total(now) >= ended

    def _is_outage(self, ended: int, successes: int, now: float) -> bool:
        failed = len(self._failing)
        if failed < self._options.messages:
            return False
        if sum(each.has_recovered for each in self._failing.values()) >= MAX_RECOVERED * failed:
            return False
        if self.needed_by_all:
            return successes - self.successes_before() <= MAX_RECOVERED * self._options.messages
        if max(failed, self._newly_failing.total(now)) < LEAST_SHARE * ended:
            return False
        return self.is_named or self._is_half(ended, now)

    def successes_before(self) -> int:
        """How many messages of the source had succeeded when the earliest of the latest failures came."""
        latest = list(self._failing.values())[-self._options.messages :]
        return min((each.successes for each in latest), default=0)

    def _is_charged(self, message: str, now: float) -> bool:
        if self._doubted_since is None or now - self._doubted_since > self._options.within:
            return True
        return not self.is_named and self._failing[message].charged < CHARGED_AT_MOST

    def _refund(self, message: str) -> int:
        """How many charges too many the message has, from before it was known that others fail as well."""
        seen = self._failing.get(message)
        if seen is None or seen.charged <= CHARGED_AT_MOST:
            return 0
        refund, seen.charged = seen.charged - CHARGED_AT_MOST, CHARGED_AT_MOST
        return refund

    def _open(self, now: float) -> None:
        since = min(each.first for each in self._failing.values())
        self.evidence = Evidence(self.dependency, since, len(self._failing), tuple(self._samples), self.is_named)
        self.state = CircuitState.OPEN
        self._interval = self._options.first_probe
        self._probe_at = now + self._interval
        self._turn_at = 0.0

    def _open_again(self, now: float) -> None:
        self.state = CircuitState.OPEN
        self._probe_at = now + self._interval
