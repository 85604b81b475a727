"""Keeps one consumer in step with the rest of its fleet, by way of the store.

The store is asked in a thread of its own: no message waits for it. The consumer's thread leaves a snapshot here and takes over
what the fleet has decided meanwhile (`sync`; `flow/fleet.py` knows what that means). While the store is away, the consumer goes
on by itself.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from unpoison.control.source import SourceControl
from unpoison.errors import ConfigError, UnpoisonError
from unpoison.flow.fleet import Answer, FleetMember, LettersPaused, LettersResumed, News, OutageOver, Snapshot, evidence_of
from unpoison.reporting.control_lines import explained
from unpoison.store.port import ADMISSION, ConsumerSign, Pause, Shared, SharedCircuit, Store

log = logging.getLogger("unpoison")

EXCHANGE_EVERY = 2.0
"""Seconds between two exchanges with the store; this is how soon `unpoison pause` is heard."""
EXCHANGE_BUSY = 0.5
"""The same while the source is paused or a dependency is down."""
YIELDS = EXCHANGE_BUSY
"""Seconds for which a consumer that had nothing to probe with leaves the next probe to others."""
LEAST = 0.05
"""Seconds between two exchanges at least: changes come in groups."""
FIRST_WITHIN = 2.0
"""Seconds that a consumer waits, before its first message, for what the fleet knows."""
SILENT_FOR = 5.0
"""Seconds after which a store that does not answer counts as away, so that probes do not wait for it."""
LEAVE_WITHIN = 2.0
"""Seconds that the end of a consumer waits at most for the store to hear what was found last. Its sign of life would grow old by
itself."""


class StoreLink:
    """The connection of one consumer to its fleet."""

    def __init__(
        self,
        store: Store,
        source: str,
        consumer: str,
        code_version: str | None,
        ring: Callable[[], None],
        *,
        create: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._source, self._consumer, self._version = store, source, consumer, code_version
        self._ring, self._create, self._monotonic = ring, create, monotonic
        self._member = FleetMember(source, consumer, code_version)
        self._lock = threading.Lock()
        self._snapshot = Snapshot()
        self._answer: Answer | None = None
        self._granted: Mapping[str, float] = {}
        """Dependencies that this consumer may probe, and until when."""
        self._is_away = self._was_away = True
        self._asking_since = float("inf")
        self._told, self._offset = 0, 0.0
        """Up to which number the store has our news; what the store's clock is ahead of ours."""
        self._found_over: float | None = None
        """When the pause because of dead letters began during which messages have succeeded here."""
        self._last: Shared | None = None
        self._is_starting = True
        """Somebody waits for the first answer, and can be told that the database cannot be the store."""
        self._refused: ConfigError | None = None
        self._wake, self._closed, self._first = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"unpoison-store-{source}", daemon=True)

    def start(self) -> None:
        """Begin, and wait a moment for what the fleet knows: a source that is paused is not to start a message first.

        Raises ConfigError if the database cannot be the store. One that is away is no error.
        """
        self._thread.start()
        self._first.wait(FIRST_WITHIN)
        with self._lock:
            self._is_starting = False
        if self._refused is not None:
            raise self._refused

    def close(self) -> None:
        """Take leave of the fleet, once it has heard what was found last. A store that is away is not waited for."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive() and not self._is_away:
            self._thread.join(timeout=LEAVE_WITHIN)

    @property
    def is_up(self) -> bool:
        """Whether the store answers. Any thread may ask."""
        return not self._is_away and self._monotonic() - self._asking_since <= SILENT_FOR

    # In the consumer's thread

    def sync(self, control: SourceControl) -> None:
        """Take over what the fleet has decided, and tell it what has changed here. Costs next to nothing if nothing has."""
        now, answer, has_changed = self._monotonic(), self._answer, bool(control.changes)
        is_away = not self.is_up
        if answer is None and is_away == self._was_away and not has_changed:
            return
        has_news = self._member.look(control, now)
        if is_away != self._was_away and control.circuits is not None:
            control.circuits.share(is_shared=not is_away)
        self._was_away = is_away
        if answer is not None:
            self._member.take_over(control, answer, now)
            self._allow_probes(control)
        with self._lock:
            self._snapshot = self._member.snapshot(control, now)
            if self._answer is answer:
                self._answer = None
        if has_changed or has_news:
            self._wake.set()

    def _allow_probes(self, control: SourceControl) -> None:
        with self._lock:
            granted, self._granted = self._granted, {}
        for dependency, until in granted.items():
            circuit = None if control.circuits is None else control.circuits.get(dependency)
            if circuit is not None:
                circuit.grant(until)

    # In the thread of the store

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            try:
                pause = self.step()
            except ConfigError:
                self._first.set()
                return
            self._first.set()
            self._closed.wait(LEAST)  # changes come in groups
            self._wake.wait(pause)
        self._leave()

    def step(self) -> float:
        """One exchange. Returns how many seconds there are to the next, unless something changes."""
        self._asking_since = self._monotonic()
        try:
            if self._is_away:
                self._store.open(create=self._create)
            return self._exchange()
        except UnpoisonError as error:
            if isinstance(error, ConfigError) and self._refuses(error):
                raise
            self._goes_away(str(error))
        except Exception as error:  # whatever is wrong, the consumer must not wait for grants that never come
            log.exception("Source %r: a fault of unpoison's own in its store.", self._source, extra={"event": "store-fault"})
            self._goes_away(f"The store cannot be used: {error!r}.")
        finally:
            self._asking_since = float("inf")
        return EXCHANGE_EVERY

    def _refuses(self, error: ConfigError) -> bool:
        """Whether this error ends the start. One that comes too late for that is a store that is away."""
        with self._lock:
            if self._is_starting and not self._first.is_set():
                self._refused = error
            return self._refused is not None

    def _exchange(self) -> float:
        snapshot, shared, at = self._tell_and_ask()
        granted = self._claim(snapshot, shared, at)
        is_news = bool(granted) or self._last is None or _what_matters(shared) != _what_matters(self._last)
        with self._lock:
            self._answer, self._granted = Answer(shared, at, self._told), {**self._granted, **granted}
            self._offset, self._last = shared.now - at, shared
        self._comes_back()
        if is_news:
            self._ring()
        return _next_in(snapshot, shared, self._monotonic() - at)

    def _tell_and_ask(self) -> tuple[Snapshot, Shared, float]:
        """What this consumer has to say, and what the store answered when."""
        with self._lock:
            snapshot, is_taken_over = self._snapshot, self._answer is None
        for number, news in snapshot.news:
            if number > self._told:
                self._tell(news, snapshot.now)
        # A consumer that has not yet taken over the last answer might bring back an outage that is over.
        may_add = is_taken_over and self._last is not None
        ours = [self._stored(each) for each in snapshot.circuits if may_add or each.revision]
        state = "paused" if snapshot.is_paused else "running"
        shared = self._store.exchange(ConsumerSign(self._consumer, self._source, self._version, 0.0, 0.0, state), ours)
        at, self._told = self._monotonic(), max([self._told, *(number for number, _ in snapshot.news)])
        self._end_letters(shared)
        return snapshot, shared, at

    def _tell(self, news: News, now: float) -> None:
        match news:
            case LettersPaused(letters):
                self._found_over = None
                reason = f"{self._source!r} is paused{explained(self._source, letters, now)}"
                evidence = evidence_of(letters)
                self._store.pause(Pause(self._source, ADMISSION, reason, self._consumer, 0.0, self._version, evidence))
            case LettersResumed(since):
                self._found_over = since
            case OutageOver(dependency, since):
                self._store.close_circuit(self._source, dependency, since)

    def _stored(self, circuit: SharedCircuit) -> SharedCircuit:
        """With times by the clock of the store."""
        times = {name: getattr(circuit, name) + self._offset for name in ("since", "next_probe_at", "heard_at")}
        return msgspec.structs.replace(circuit, **times)

    def _end_letters(self, shared: Shared) -> None:
        """A pause because of dead letters is over once messages succeed again with the version that made them, or once no
        consumer has that version, and one that works is here."""
        for pause in shared.pauses:
            works, is_gone = pause.since == self._found_over, pause.code_version not in shared.living_versions
            is_cured = works and pause.code_version == self._version
            is_left_behind = is_gone and (works or self._version in shared.newer_versions)
            if pause.kind == ADMISSION and (is_cured or is_left_behind):
                by = self._consumer if self._version is None else f"{self._consumer}, version {self._version}"
                self._store.resume(self._source, by, [ADMISSION])

    def _claim(self, snapshot: Snapshot, shared: Shared, at: float) -> Mapping[str, float]:
        """The dependencies that this consumer may probe for the whole fleet, and until when."""
        known = {circuit.dependency: circuit for circuit in shared.circuits}
        granted = {}
        for ours in snapshot.circuits:
            theirs = known.get(ours.dependency)
            others_first = YIELDS if shared.consumers > 1 and ours.dependency in snapshot.idle else 0.0
            if theirs is None or ours.dependency not in snapshot.probing or theirs.due_in(shared.now) > -others_first:
                continue
            interval = max(theirs.interval, min(snapshot.longest_probe, 2 * theirs.interval))
            if self._store.claim_probe(self._source, ours.dependency, interval, self._consumer):
                granted[ours.dependency] = at + interval
        return granted

    def _goes_away(self, error: str) -> None:
        if not self._is_away or not self._first.is_set():
            text = "Source %r: %s Its consumer goes on without: it does not hear of pauses and of outages that others find."
            log.warning(text, self._source, error, extra={"event": "store-away", "source": self._source})
        self._is_away = True
        self._ring()

    def _comes_back(self) -> None:
        if self._is_away and self._first.is_set():
            log.warning(
                "Source %r: the store can be used again.", self._source, extra={"event": "store-back", "source": self._source}
            )
        self._is_away = False

    def _leave(self) -> None:
        with suppress(UnpoisonError):  # then the sign of life grows old by itself
            if not self._is_away:
                self._tell_and_ask()
                self._store.leave(self._consumer, self._source)
            self._store.close()


def _what_matters(shared: Shared) -> tuple[object, ...]:
    return shared.pauses, shared.circuits, shared.newer_versions, shared.consumers


def _next_in(snapshot: Snapshot, shared: Shared, passed: float) -> float:
    """Soon while something is wrong, and when the next probe is due."""
    due = [circuit.due_in(shared.now) - passed for circuit in shared.circuits]
    soon = EXCHANGE_BUSY if snapshot.circuits or snapshot.is_paused or shared.circuits else EXCHANGE_EVERY
    return min([soon, *(each for each in due if each > 0)])
