"""What does one consumer tell its fleet, and what does it take over from it?

Pure: no threads, no I/O, times are passed in. The consumer's thread calls `look` to notice what has changed here, `take_over`
with what the store has answered, and `snapshot` for what the store is to be told. What an answer says about outages and dead
letters counts only if the store knew all news of this consumer when it gave it: else an older state would undo a newer one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from unpoison.control.admission import PROBE_INTERVAL, TooManyDead
from unpoison.control.breaker import Circuit, CircuitState
from unpoison.control.changes import OperatorPause
from unpoison.control.circuits import Circuits
from unpoison.control.evidence import End, Evidence
from unpoison.control.source import SourceControl
from unpoison.store.port import ADMISSION, FORGOTTEN, OPEN, OPERATOR, PAUSING, Pause, Shared, SharedCircuit


class LettersPaused(NamedTuple):
    """This consumer has paused the source: too many messages were to become dead letters."""

    pause: TooManyDead


class LettersResumed(NamedTuple):
    """It is over, as this consumer has found out. `since` is what the store says of the pause, if it was the store's."""

    since: float | None = None


class OutageOver(NamedTuple):
    """The dependency works again, as this consumer has found out. `since` is what the store says of the outage."""

    dependency: str
    since: float


class OutageChanged(NamedTuple):
    """Hardly any other message succeeds any more, or others do again."""

    dependency: str
    state: str


News: TypeAlias = LettersPaused | LettersResumed | OutageOver | OutageChanged


class Snapshot(NamedTuple):
    """What a consumer tells the fleet, at the time `now` of its own clock. Times in `circuits` are by that clock too."""

    circuits: Sequence[SharedCircuit] = ()
    news: Sequence[tuple[int, News]] = ()
    """Numbered in the order in which they came."""
    probing: frozenset[str] = frozenset()
    """Dependencies that are to be probed; of others a probe has just succeeded."""
    idle: frozenset[str] = frozenset()
    """Dependencies that this consumer was allowed to probe, and has not: it has had nothing to probe with."""
    is_paused: bool = False
    longest_probe: float = 0.0
    now: float = 0.0


class Answer(NamedTuple):
    """What the store has answered: at the time `at` of the consumer's own clock, and knowing its news up to number `told`."""

    shared: Shared
    at: float
    told: int

    def here(self, past: float) -> float:
        """A time of the past, which the store tells, by the consumer's own clock."""
        return self.at - max(0.0, self.shared.now - past)


class FleetMember:
    """One consumer of a fleet, as the others see it."""

    def __init__(self, source: str, consumer: str, code_version: str | None) -> None:
        self._source, self._consumer, self._version = source, consumer, code_version
        self._news: dict[str, tuple[int, News]] = {}
        """The latest of each matter."""
        self._said = 0
        self._letters: TooManyDead | None = None
        self._followed: Pause | None = None
        """The pause of the store because of dead letters, if this consumer is paused by it."""
        self._found_over: float | None = None
        """When the pause of the store began during which messages have succeeded here."""
        self._resumed_at: float | None = None
        """When a person last ended a pause because of dead letters, as was heard last."""
        self._known: dict[str, SharedCircuit] = {}
        """Outages that the store has, and that this consumer has followed."""

    def look(self, control: SourceControl, now: float) -> bool:
        """Notice what has changed here. True if the others are to hear of it."""
        if control.circuits is not None:
            control.circuits.expire(now)
        letters = None if control.admission is None else control.admission.pause
        if letters is not self._letters:
            self._letters = letters
            self._found_over = None if letters is not None or self._followed is None else self._followed.since
            self._say("letters", LettersResumed(self._found_over) if letters is None else LettersPaused(letters))
        for each in list(self._known.values()):
            circuit = _open(control.circuits, each.dependency)
            if circuit is None:
                del self._known[each.dependency]
                self._say(f"outage of {each.dependency}", OutageOver(each.dependency, each.since))
            elif (state := _state(control.circuits, circuit)) != each.state:
                self._say(f"outage of {each.dependency}", OutageChanged(each.dependency, state))
        return bool(self._news)

    def _say(self, matter: str, news: News) -> None:
        if matter not in self._news or self._news[matter][1] != news:
            self._said += 1
            self._news[matter] = (self._said, news)

    def take_over(self, control: SourceControl, answer: Answer, now: float) -> None:
        """Follow what the fleet has decided."""
        self._news = {matter: each for matter, each in self._news.items() if each[0] > answer.told}
        shared = answer.shared
        control.share_budget(shared.consumers)
        if not self._news:
            self._follow_letters(control, answer, now)
            if control.circuits is not None:
                self._follow_outages(control, control.circuits, answer, now)
        self._follow_operator(control, answer, now)  # last: it hides the others

    def _follow_operator(self, control: SourceControl, answer: Answer, now: float) -> None:
        pause = next((pause for pause in answer.shared.pauses if pause.kind == OPERATOR), None)
        if pause is None:
            control.pause_by_operator(None, now)
        else:
            since = answer.here(pause.since)
            control.pause_by_operator(OperatorPause(pause.by, pause.reason, pause.since), now, since)

    def _follow_letters(self, control: SourceControl, answer: Answer, now: float) -> None:
        """A pause holds for consumers of the version that it is about, and for older ones until a message succeeds there: a newer
        one may be the cure."""
        pause = next((pause for pause in answer.shared.pauses if pause.kind == ADMISSION), None)
        is_newer = self._version in answer.shared.newer_versions
        is_by_person, self._resumed_at = answer.shared.resumed_at != self._resumed_at, answer.shared.resumed_at
        is_free = pause is None or is_newer or pause.since == self._found_over
        self._followed = None if is_free else pause
        if pause is not None and not is_free:
            control.adopt_letters_pause(_too_many(pause, answer.here(pause.since)), now)
        elif is_by_person:
            control.resume_letters(now)
        else:  # unless its code is new, messages have succeeded in another consumer
            control.letters_paused_no_longer(now, on_probation=not is_newer)
        self._letters = None if control.admission is None else control.admission.pause

    def _follow_outages(self, control: SourceControl, circuits: Circuits, answer: Answer, now: float) -> None:
        there = {circuit.dependency: circuit for circuit in answer.shared.circuits}
        for dependency in self._known.keys() - there:
            was_forgotten = answer.shared.now - self._known[dependency].heard_at > FORGOTTEN
            circuits.close(dependency, now, End.FORGOTTEN if was_forgotten else End.TOLD)
        for each in there.values():
            evidence = Evidence(each.dependency, answer.here(each.since), each.messages, each.samples, each.is_named)
            probe_in = max(0.0, answer.at + each.due_in(answer.shared.now) - now)
            control.learn_rate(each.rate)
            circuits.follow_fleet(evidence, each.interval, probe_in, now, is_pausing=each.state == PAUSING)
        self._known = there

    def snapshot(self, control: SourceControl, now: float) -> Snapshot:
        news = list(self._news.values())
        if control.circuits is None or control.options.breaker is None:
            return Snapshot((), news, is_paused=control.is_paused, now=now)
        there = list(control.circuits)
        rate, known = control.rate(now) or 0.0, control.circuits
        circuits = [self._told_of(known, each, each.evidence, rate, now) for each in there if each.evidence is not None]
        is_held = isinstance(control.pause, OperatorPause | TooManyDead)  # then it starts no probe of a dependency
        probing = frozenset(each.dependency for each in there if each.state is CircuitState.OPEN and not is_held)
        idle = frozenset(each.dependency for each in there if each.has_grant)
        return Snapshot(circuits, news, probing, idle, control.is_paused, control.options.breaker.longest_probe, now)

    def _told_of(self, circuits: Circuits, circuit: Circuit, evidence: Evidence, rate: float, now: float) -> SharedCircuit:
        known = self._known.get(circuit.dependency)
        return SharedCircuit(
            source=self._source,
            dependency=circuit.dependency,
            is_named=circuit.is_named,
            state=_state(circuits, circuit),
            since=evidence.since,
            messages=evidence.messages,
            samples=evidence.samples,
            next_probe_at=now + circuit.probe_due_in(now),
            interval=circuit.interval,
            by=self._consumer,
            revision=0 if known is None else known.revision,
            heard_at=circuit.heard_at,
            rate=rate,
        )


def _open(circuits: Circuits | None, dependency: str) -> Circuit | None:
    circuit = None if circuits is None else circuits.get(dependency)
    return None if circuit is None or circuit.state is CircuitState.CLOSED else circuit


def _state(circuits: Circuits | None, circuit: Circuit) -> str:
    return PAUSING if circuits is not None and circuits.pausing is circuit else OPEN


def evidence_of(letters: TooManyDead) -> Mapping[str, Any]:
    """The evidence of a pause as the store has it."""
    return {"dead": letters.dead, "ended": letters.ended, "within": letters.within, "samples": list(letters.samples)} | {
        "interval": letters.interval
    }


def _too_many(pause: Pause, since: float) -> TooManyDead:
    """What another consumer has told. Anything may stand in a database, so nothing of it is relied on."""
    try:
        found = msgspec.convert(dict(pause.evidence), _Evidence)
    except msgspec.ValidationError:
        found = _Evidence()
    return TooManyDead(since, found.dead, found.ended, found.within, found.samples, found.interval)


class _Evidence(msgspec.Struct):
    dead: int = 0
    ended: int = 0
    within: float = 0.0
    samples: tuple[str, ...] = ()
    interval: float = PROBE_INTERVAL
