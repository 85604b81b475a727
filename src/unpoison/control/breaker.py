"""Tells the outage of a dependency from poison, and finds out when it is over.

    closed ── many different messages fail on it, and hardly any of them succeeds when run again ──► open
    open   ── one probe at a time, after 1 s, 2 s, 4 s … 15 s; one succeeds ──► ramp
    ramp   ── 1, 2, 4 … messages at a time; one fails on it again ──► open
    ramp   ── enough at a time have succeeded ──► closed

`Circuit` is that for one dependency. One message that fails often is never evidence: that is poison.
"""

import enum
from collections.abc import Iterable

import msgspec

from unpoison.errors import ConfigError

MAX_RECOVERED = 0.1
"""The share of the messages that had failed, and then succeeded, above which there is no outage."""
CHARGED_AT_MOST = 2
"""How often a message is charged while evidence is gathered."""
MAX_PROBES = 3
"""Probes that run at the same time: one that outlasts its interval does not block the next."""
RAMP_ENDS = 64
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


class _Failing(msgspec.Struct):
    first: float
    last: float
    times: int
    has_recovered: bool = False


class Circuit:
    """The state of one dependency, as one consumer sees it. `is_named` says that the dependency is known by name or address;
    otherwise it is guessed from type and place of the error, and more evidence is needed."""

    def __init__(self, dependency: str, options: Breaker, *, is_named: bool) -> None:
        self.dependency, self._options, self._is_named = dependency, options, is_named
        self.state = CircuitState.CLOSED
        self.evidence: Evidence | None = None
        self._failing: dict[str, _Failing] = {}
        self._doubted_since: float | None = None
        """When a second message failed on it: from then on, failures are evidence rather than charged."""
        self._samples: list[str] = []
        self._interval = options.first_probe
        self._probe_at = 0.0
        self._running: set[str] = set()
        self._level = self._succeeded = 0

    def failed(self, message: str, error: str, now: float, *, ended: int = 0) -> Charge:
        """A message has failed on the dependency. `ended` is how many messages of the source ended within the options' window."""
        self._running.discard(message)
        if self.state is CircuitState.OPEN:
            return Charge.OUTAGE
        if self.state is CircuitState.RAMP:
            self._open_again(now)
            return Charge.OUTAGE
        self._note(message, error, now)
        if self._is_outage(ended):
            self._open(now)
            return Charge.OUTAGE
        return self._charge(message, now)

    def recovered(self, message: str) -> None:
        """A message that had failed on the dependency has succeeded."""
        self._running.discard(message)
        match self.state:
            case CircuitState.CLOSED:
                if message in self._failing:
                    self._failing[message].has_recovered = True
            case CircuitState.OPEN:
                self.state, self._level, self._succeeded = CircuitState.RAMP, 1, 0
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
                return int(now >= self._probe_at and len(self._running) < MAX_PROBES)
            case CircuitState.RAMP:
                return max(0, self._level - len(self._running))

    def started(self, messages: Iterable[str], now: float) -> None:
        """These messages, which wait for the dependency, have been started."""
        for message in messages:
            self._running.add(message)
            if self.state is CircuitState.OPEN:
                self._interval = min(self._options.longest_probe, 2 * self._interval)
                self._probe_at = now + self._interval

    def next_probe_in(self, now: float) -> float | None:
        """Seconds until the next probe; None unless the circuit is open."""
        return max(0.0, self._probe_at - now) if self.state is CircuitState.OPEN else None

    def close(self) -> None:
        """The dependency works again, or a person says so."""
        self.state, self.evidence = CircuitState.CLOSED, None
        self._failing.clear()
        self._samples.clear()
        self._running.clear()
        self._doubted_since, self._interval = None, self._options.first_probe

    def _note(self, message: str, error: str, now: float) -> None:
        oldest = now - self._options.within
        for gone in [each for each, seen in self._failing.items() if seen.last <= oldest]:
            del self._failing[gone]
        seen = self._failing.pop(message, None)
        if seen is None:
            seen = _Failing(now, now, 0)
            if len(self._failing) >= MAX_KNOWN:
                del self._failing[next(iter(self._failing))]
        seen.last, seen.times, seen.has_recovered = now, seen.times + 1, False
        self._failing[message] = seen
        if len(self._failing) < 2:
            self._doubted_since = None
            self._samples.clear()
        elif self._doubted_since is None:
            self._doubted_since = now
        if error not in self._samples and len(self._samples) < SAMPLES:
            self._samples.append(error)

    def _is_outage(self, ended: int) -> bool:
        failed = len(self._failing)
        if failed < self._options.messages:
            return False
        if sum(each.has_recovered for each in self._failing.values()) >= MAX_RECOVERED * failed:
            return False
        return self._is_named or 2 * failed >= min(ended, 2 * MAX_KNOWN)

    def _charge(self, message: str, now: float) -> Charge:
        if self._doubted_since is None or now - self._doubted_since > self._options.within:
            return Charge.CHARGED
        if self._is_named or self._failing[message].times > CHARGED_AT_MOST:
            return Charge.UNCHARGED
        return Charge.CHARGED

    def _open(self, now: float) -> None:
        since = min(each.first for each in self._failing.values())
        self.evidence = Evidence(self.dependency, since, len(self._failing), tuple(self._samples))
        self.state = CircuitState.OPEN
        self._interval = self._options.first_probe
        self._probe_at = now + self._interval

    def _open_again(self, now: float) -> None:
        self.state = CircuitState.OPEN
        self._probe_at = now + self._interval
