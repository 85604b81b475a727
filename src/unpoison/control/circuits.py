"""Keeps the circuits of one source, one for each dependency, and knows whether hardly anything succeeds without one of them."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from unpoison.control.beside import Beside
from unpoison.control.breaker import Charge, Circuit, CircuitState
from unpoison.control.changes import Change, Closed, Meaning, Opened, PutOff, StillDown, sample_of, spread_of
from unpoison.control.counting import RecentCount
from unpoison.control.evidence import LATELY, End, Ended, Evidence
from unpoison.control.options import Breaker
from unpoison.model.backoff import bounded
from unpoison.model.failure import Failure
from unpoison.model.message import DEPENDENCY_LIMIT, Delivery
from unpoison.model.verdict import ErrorClassification

MAX_CIRCUITS = 1_000
SAY_AGAIN_EVERY = 600.0

_EVIDENCE = (ErrorClassification.TRANSIENT, ErrorClassification.TIMEOUT, ErrorClassification.UNKNOWN)


class Circuits:
    """The circuits of one source. `depends_on` names what every message of it needs."""

    def __init__(self, options: Breaker, depends_on: str | None, changes: list[Change]) -> None:
        self._options, self._depends_on, self._changes = options, depends_on, changes
        self._known: dict[str, Circuit] = {}
        self._tried: dict[str, str] = {}
        """Running messages that have failed before, or were let through to try a dependency, and which one that is."""
        self.pausing: Circuit | None = None
        """The circuit without whose dependency hardly any message succeeds, until it is closed."""
        self._is_shared = False
        self._held_since: float | None = None
        self._paused_by_fleet: set[str] = set()
        """Dependencies of which the fleet has said that hardly anything succeeds without them."""
        self._ended = RecentCount(options.within), RecentCount(options.within * LATELY)
        self._successes = self._successes_before = 0
        self._succeeded_at = float("-inf")
        self._batch = 0, 0
        """Of the batch that is judged: how many have succeeded, but those that need what is down, and how many have failed."""
        self._open: dict[str, Circuit] = {}
        """Those that are not closed."""
        self._said_at: dict[str, float] = {}
        """By open circuit: when it was last said that it is open."""
        self._beside: dict[str, Beside] = {}
        """By open circuit: what succeeds beside the failures on it."""

    def __iter__(self) -> Iterator[Circuit]:
        return iter(self._known.values())

    def states(self) -> dict[str, CircuitState]:
        """The state of each circuit, by dependency. Any thread may ask."""
        return {each.dependency: each.state for each in list(self._known.values())}

    @property
    def outage(self) -> Evidence | None:
        """Why nothing but probes of a dependency may start; None if other messages may."""
        return self.pausing.evidence if self.pausing is not None and self.pausing.state is CircuitState.OPEN else None

    def started(self, deliveries: Sequence[Delivery], now: float) -> None:
        """While hardly anything succeeds, whatever is started tries the dependency."""
        if self.pausing is None:
            return
        for delivery in deliveries:
            tries = self._tried.get(delivery.id)
            if tries != self.pausing.dependency:
                if tries in self._known:
                    self._known[tries].ended_otherwise(delivery.id, now)
                self._try(self.pausing, delivery.id, now)

    def refused(self, delivery: Delivery, now: float) -> PutOff | None:
        """A message that has failed before is to start. Put off if it waits for a dependency that is still down."""
        circuit, times = self._known.get(delivery.counters.waits_for), delivery.counters.put_off
        if circuit is None:
            return None
        self._expire(circuit, now)
        spread = spread_of(delivery.id, now)
        recovery = None if circuit is self.pausing or not times else circuit.recovery
        if circuit.room(now) == 0:
            after = circuit.wait(times, spread, now) if recovery is None else recovery.turn(times, spread, now)
            return PutOff(delivery, after, circuit.dependency)
        if recovery is not None and (later := recovery.wait(times, spread, now)) is not None:
            return PutOff(delivery, later, circuit.dependency)
        if circuit.state is not CircuitState.CLOSED:
            self._try(circuit, delivery.id, now)
        return None

    def watch(self, delivery: Delivery) -> None:
        """A message that has failed before starts: its success says something about the dependency."""
        self._tried.setdefault(delivery.id, delivery.counters.waits_for)

    def _try(self, circuit: Circuit, message: str, now: float) -> None:
        self._tried[message] = circuit.dependency
        circuit.started([message], now)

    def ended(self, good: Sequence[Delivery], failed: int, now: float) -> None:
        """So many messages have ended. To be told before the failures of the same batch are weighed."""
        self._successes_before = self._successes
        self._successes += len(good)
        self._succeeded_at = now if good else self._succeeded_at
        for count in self._ended:
            count.add(len(good) + failed, now)
        others = len(good)
        for delivery in [each for each in good if each.id in self._tried] if self._tried else ():
            circuit = self._known.get(self._tried.pop(delivery.id, ""))
            if circuit is not None:
                others -= self._succeeded(circuit, delivery, now)
        self._batch = others, failed
        for beside in self._beside.values():
            beside.ended(others, failed, now)

    def _succeeded(self, circuit: Circuit, delivery: Delivery, now: float) -> bool:
        """A message has succeeded that tried a dependency. Returns whether it needs it: of one that was started as a probe though
        it had never failed nobody knows, so it says that others succeed, and perhaps that the dependency works again."""
        needs_it = circuit.needed_by_all or delivery.counters.waits_for == circuit.dependency
        evidence = circuit.evidence
        if needs_it or circuit is self.pausing:
            circuit.recovered(delivery.id, now, needs_it=needs_it)
            self._note_closed(circuit, evidence, now)
        else:
            circuit.ended_otherwise(delivery.id, now)
        return needs_it

    def forget(self, deliveries: Iterable[Delivery], now: float) -> None:
        """These did not end, or not in a way that says anything about a dependency."""
        for delivery in deliveries if self._tried else ():
            self._ended_otherwise(delivery, "", now)

    def drop_all(self, now: float) -> None:
        """Nothing that was started is ours any more."""
        for message, dependency in self._tried.items():
            if dependency in self._known:
                self._known[dependency].ended_otherwise(message, now)
        self._tried.clear()

    def _ended_otherwise(self, delivery: Delivery, dependency: str, now: float) -> None:
        tried = self._tried.pop(delivery.id, "")
        if tried != dependency and tried in self._known:
            self._known[tried].ended_otherwise(delivery.id, now)

    def weigh(self, delivery: Delivery, failure: Failure, now: float) -> Meaning:
        """What the failure of a message means in the light of all others."""
        dependency = self._evidence_against(failure)
        self._ended_otherwise(delivery, dependency, now)
        if delivery.counters.history:
            for count in self._ended:
                count.take(1, now)
        if not dependency:
            return Meaning(failure)
        circuit = self._circuit(dependency, failure, now)
        self._expire(circuit, now)
        was_closed, was_doubtful = circuit.state is CircuitState.CLOSED, circuit.is_doubtful
        is_first = not delivery.counters.history
        charge, refund = circuit.failed(
            delivery.id,
            sample_of(failure),
            now,
            Ended(self._ended[0].total(now), self._ended[1].total(now), self._successes_before),
            is_charged=failure.charged,
            is_first=is_first,
        )
        if charge is Charge.CHARGED:
            return Meaning(failure, waits_for=dependency)
        if charge is Charge.UNCHARGED:
            rule = f"{failure.rule}; not charged, since other messages fail on {dependency} too"
            return Meaning(msgspec.structs.replace(failure, charged=False, rule=rule), None, dependency, refund)
        self._note_doubt(circuit, now, was_doubtful=was_doubtful)
        self._note_outage(circuit, now, was_closed=was_closed, is_first=is_first)
        self._say_still_down(circuit, now)
        times = delivery.counters.put_off
        asked = bounded(failure.retry_after or 0.0).total_seconds()
        wait = circuit.wait(times, spread_of(delivery.id, now), now, was_probe=times > 0, asked=asked)
        problem = dependency if circuit.evidence is None else circuit.evidence.problem
        rule = f"{problem}, {failure.rule}"
        outage = msgspec.structs.replace(failure, classification=ErrorClassification.OUTAGE, charged=False, rule=rule)
        return Meaning(outage, wait, dependency, refund)

    def _evidence_against(self, failure: Failure) -> str:
        """The dependency that may be down; empty if the failure says nothing about one."""
        if failure.classification not in _EVIDENCE or not failure.started or failure.worker_damage:
            return ""
        if failure.blames_process and failure.classification is not ErrorClassification.TIMEOUT:
            return ""
        if not failure.charged and not failure.is_dependency_named:
            return ""  # the handler asked for another start, and named no reason
        return failure.dependency or self._depends_on or failure.type_name[:DEPENDENCY_LIMIT]

    def _circuit(self, dependency: str, failure: Failure, now: float) -> Circuit:
        known = self._known.get(dependency)
        return known or self._new(dependency, now, is_named=failure.is_dependency_named)

    def _new(self, dependency: str, now: float, *, is_named: bool) -> Circuit:
        if len(self._known) >= MAX_CIRCUITS:
            self._remove_one(now)
        by_all = dependency == self._depends_on
        circuit = Circuit(dependency, self._options, is_named=is_named or by_all, needed_by_all=by_all)
        circuit.needs_grant = self._is_shared
        self._known[dependency] = circuit
        return circuit

    def _remove_one(self, now: float) -> None:
        closed = [each for each in self if each.state is CircuitState.CLOSED]
        gone = next((each for each in closed if each.is_idle(now)), None) or next(iter(closed or self))
        del self._known[gone.dependency]
        self._open.pop(gone.dependency, None)
        self._beside.pop(gone.dependency, None)
        self._said_at.pop(gone.dependency, None)
        if self.pausing is gone:
            self.pausing = None

    def _note_outage(self, circuit: Circuit, now: float, *, was_closed: bool, is_first: bool) -> None:
        if was_closed and circuit.evidence is not None:
            self._note_opened(circuit, circuit.evidence, now)
        beside = self._beside[circuit.dependency]
        beside.failed(is_first=is_first)
        if circuit.needed_by_all or (circuit.state is CircuitState.OPEN and beside.hardly_any_succeed(now)):
            self.pausing = self.pausing or circuit

    def _note_opened(self, circuit: Circuit, evidence: Evidence, now: float) -> None:
        self._open[circuit.dependency] = circuit
        self._beside[circuit.dependency] = beside = Beside(self._options.messages, max(evidence.since, self._succeeded_at))
        if circuit.successes_before() == self._successes:
            beside.begin_with(self._options.messages - 1)
        else:
            beside.ended(*self._batch, now)
        self._changes.append(Opened(evidence))

    def _note_doubt(self, circuit: Circuit, now: float, *, was_doubtful: bool) -> None:
        """It is known by now whether the messages that have succeeded need it. If they do not, it is still down."""
        if was_doubtful and circuit.state is CircuitState.OPEN:
            self._others_succeed(circuit, now)

    def _others_succeed(self, circuit: Circuit, now: float) -> None:
        """The source goes on, though the dependency is still down."""
        self._paused_by_fleet.discard(circuit.dependency)
        if self.pausing is circuit:
            self.pausing = None
            self._beside[circuit.dependency].was_mistaken(now)

    def _say_still_down(self, circuit: Circuit, now: float) -> None:
        """From time to time: poison that fails on what works for all others looks like an outage that never ends."""
        if circuit.evidence is None:
            return
        said = self._said_at.setdefault(circuit.dependency, circuit.evidence.since)
        if now - said >= SAY_AGAIN_EVERY:
            self._said_at[circuit.dependency] = now
            self._changes.append(StillDown(circuit.evidence, now - circuit.evidence.since))

    def _expire(self, circuit: Circuit, now: float) -> None:
        if self._held_since is not None:
            return
        evidence, was_doubtful = circuit.evidence, circuit.is_doubtful
        circuit.expire(now)
        self._note_doubt(circuit, now, was_doubtful=was_doubtful)
        self._note_closed(circuit, evidence, now)

    def _note_closed(self, circuit: Circuit, evidence: Evidence | None, now: float) -> None:
        if evidence is None or circuit.state is not CircuitState.CLOSED:
            return
        self._open.pop(circuit.dependency, None)
        self._beside.pop(circuit.dependency, None)
        self._said_at.pop(circuit.dependency, None)
        self._paused_by_fleet.discard(circuit.dependency)
        self._changes.append(Closed(circuit.dependency, now - evidence.since, circuit.end))
        if self.pausing is circuit:
            self.pausing = circuit.recovery = None  # the pace of the whole source limits them

    def room(self, now: float) -> int | None:
        """How many messages of the source may start now; None if there is no limit."""
        if self.pausing is not None:
            self._expire(self.pausing, now)
        return None if self.pausing is None else self.pausing.room(now)

    def next_probe_in(self, now: float) -> float:
        return 0.0 if self.pausing is None else self.pausing.next_probe_in(now) or 0.0

    def expire(self, now: float) -> None:
        """Close those whose time is over, though no message asks for them."""
        for circuit in list(self._open.values()):
            self._expire(circuit, now)

    def share(self, *, is_shared: bool) -> None:
        """Whether the consumers of a fleet probe for each other."""
        self._is_shared = is_shared
        for circuit in self:
            circuit.needs_grant = is_shared

    def get(self, dependency: str) -> Circuit | None:
        return self._known.get(dependency)

    def hold(self, now: float) -> None:
        """A person has paused the source, so nothing is tried. Until `go_on` no outage ends by itself."""
        if self._held_since is None:
            self._held_since = now

    def go_on(self, now: float) -> None:
        if self._held_since is not None:
            for circuit in self:
                circuit.was_held(now - self._held_since, now)
            self._held_since = None

    def close(self, dependency: str, now: float, end: End = End.TOLD) -> None:
        """The fleet says that the outage is over."""
        if (circuit := self._known.get(dependency)) is not None:
            evidence = circuit.evidence
            circuit.ended_elsewhere(end, now)
            self._note_closed(circuit, evidence, now)

    def follow_fleet(self, evidence: Evidence, interval: float, probe_in: float, now: float, *, is_pausing: bool = False) -> None:
        """A consumer of the fleet knows of an outage, and probes at this interval. `is_pausing`: hardly anything succeeds."""
        circuit = self._known.get(evidence.dependency) or self._new(evidence.dependency, now, is_named=evidence.is_named)
        was_closed = circuit.state is CircuitState.CLOSED
        circuit.follow_fleet(evidence, interval, probe_in, now)
        if was_closed:
            self._note_opened(circuit, evidence, now)
        if is_pausing or circuit.needed_by_all:
            self._paused_by_fleet.add(circuit.dependency)
            self.pausing = self.pausing or circuit
        elif circuit.dependency in self._paused_by_fleet:  # else the fleet has not heard yet of what this consumer has found out
            self._others_succeed(circuit, now)
