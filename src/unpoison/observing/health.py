"""Do the consumers of this process still turn, and would each of them start a message now?

Two questions with two consequences. A process whose loops do not turn must be restarted (`is_turning`, /healthz). One that is not
ready is left alone, but counts for nothing in a rollout (`is_ready`, /readyz). So what a restart cannot cure never makes a loop
count as hung, and what every version of the code would suffer from, a paused source above all, does not make it unready.

Each consumer's thread notes where it is. Whoever asks reads that from another thread; fields are only ever replaced whole.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from unpoison.control.admission import TooManyDead
from unpoison.control.changes import Change, OperatorPause, Paused, PauseReason, Resumed
from unpoison.errors import UnpoisonError
from unpoison.model.wording import counted, in_words
from unpoison.port.broker_url import masked_text
from unpoison.reporting.observer import Observer

HUNG_AFTER = 120.0
"""Seconds after which a loop that has not turned counts as hung. In one turn it waits for a few answers of a broker, each of
which it gives up after 30 s at the most."""


class Phase(StrEnum):
    """Where the consumer of a source is in its life."""

    OPENING = "opening"
    """It waits for its broker."""
    STARTING = "starting"
    """Its workers start."""
    RUNNING = "running"
    ENDED = "ended"


class LastTurn:
    """When a loop last came round, by the monotonic clock."""

    __slots__ = ("_monotonic", "at")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.at = monotonic()

    def note(self) -> None:
        self.at = self._monotonic()


class Condition(NamedTuple):
    """The consumer of one source at one moment. `reason` says why it is not as it should be, or why it starts nothing."""

    source: str
    state: str
    is_turning: bool
    is_ready: bool
    reason: str = ""
    since: float | None = None
    """Since when, where that is known: seconds since 1970."""


class SourceHealth:
    """What is known of the consumer of one source.

    `start_limit` is how long its workers may take to start; `turn_limit` what handlers may add to a turn: their time limit where
    they run in the loop itself, infinity if they have none. `imported_at` says when the app was last imported, or now while it
    is: loops wait for that, and it has a limit of its own.
    """

    def __init__(
        self,
        source: str,
        start_limit: float = 0.0,
        turn_limit: float = 0.0,
        imported_at: Callable[[], float] = lambda: float("-inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source, self._start_limit, self._turn_limit = source, start_limit, turn_limit
        self._imported_at, self._monotonic = imported_at, monotonic
        self.last_turn = LastTurn(monotonic)
        self._phase = Phase.OPENING
        self.thread: int | None = None
        self.problem: Callable[[], str] = str
        """Why its workers can start nothing, in words; empty if they can. Asked from any thread."""
        self.broken: tuple[float, str] | None = None
        """Since when the broker cannot be used, and what it says."""
        self.pause: tuple[float, PauseReason] | None = None
        self._was_able = False

    def enters(self, phase: Phase) -> None:
        """To be called in the thread of the consumer."""
        self.thread = threading.get_ident()
        self.last_turn.note()
        self._phase = phase

    def hung_for(self) -> float:
        """How many seconds ago its loop last turned, if that is longer than anything that it may wait for; else 0."""
        more = self._start_limit if self._phase is Phase.STARTING else self._turn_limit
        passed = self._monotonic() - max(self.last_turn.at, self._imported_at())
        return 0.0 if self._phase is Phase.ENDED or passed <= HUNG_AFTER + more else passed

    def is_turning(self) -> bool:
        """Whether it has begun, has not ended and does not hang."""
        return self._phase is Phase.RUNNING and not self.hung_for()

    def has_started(self) -> bool:
        """Whether it has ever been able to start a message."""
        self._was_able = self._was_able or (self._phase is Phase.RUNNING and not self.problem())
        return self._was_able

    def condition(self, now: float, *, is_draining: bool) -> Condition:
        if hung := self.hung_for():
            return Condition(self.source, "hung", False, False, _hung(hung), now - hung)
        state, reason, since = self._trouble()
        if is_draining or self._phase is Phase.ENDED:
            state = "ended" if self._phase is Phase.ENDED else "draining"
            return Condition(self.source, state, True, False, "This process is being stopped.")
        if state or self.pause is None:
            return Condition(self.source, state or "running", True, not state, masked_text(reason), since)
        since, why = self.pause
        return Condition(self.source, "paused", True, not isinstance(why, TooManyDead), masked_text(_paused(why)), since)

    def _trouble(self) -> tuple[str, str, float | None]:
        """What keeps it from working, which no person has asked for and no message has caused."""
        if self.broken is not None:
            return "no broker", self.broken[1], self.broken[0]
        if self._phase is not Phase.RUNNING:
            return "starting", "Its broker is being asked." if self._phase is Phase.OPENING else "Its workers are starting.", None
        if problem := self.problem():
            return "no workers", problem, None
        return "", "", None

    def stack(self) -> str:
        """Where its thread is."""
        frame = sys._current_frames().get(self.thread or 0)  # noqa: SLF001 - the documented way to see another thread
        return "" if frame is None else "".join(traceback.format_stack(frame))


class Health(Observer):
    """The consumers of a run. Safe to ask from any thread."""

    def __init__(
        self, sources: Iterable[SourceHealth], is_draining: Callable[[], bool] = bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._sources = {each.source: each for each in sources}
        self.is_draining, self._clock = is_draining, clock

    def of(self, source: str) -> SourceHealth:
        return self._sources[source]

    def lost_broker(self, source: str, error: UnpoisonError) -> None:
        known = self.of(source)
        known.broken = (self._clock() if known.broken is None else known.broken[0], str(error))

    def found_broker(self, source: str) -> None:
        self.of(source).broken = None

    def controlled(self, source: str, changes: Sequence[Change], now: float) -> None:
        known = self.of(source)
        for change in changes:
            match change:
                case Paused(reason):
                    known.pause = (self._clock() if known.pause is None else known.pause[0], reason)
                case Resumed():
                    known.pause = None

    def conditions(self) -> list[Condition]:
        now, is_draining = self._clock(), self.is_draining()
        return [each.condition(now, is_draining=is_draining) for each in self._sources.values()]

    def have_started(self) -> bool:
        """Whether all sources are open, and all have had workers."""
        return all(each.has_started() for each in self._sources.values())

    def healthz(self) -> tuple[bool, bytes]:
        """Whether all loops turn, and what to say about it."""
        conditions = self.conditions()
        is_fine = all(each.is_turning for each in conditions)
        return is_fine, _text("healthy" if is_fine else "hung", [_told(each) for each in conditions])

    def readyz(self) -> tuple[bool, bytes]:
        """Whether every source would start a message now, and what to say about it."""
        conditions = self.conditions()
        is_fine = all(each.is_ready for each in conditions)
        return is_fine, _text(
            "ready" if is_fine else "not ready", [_told(each) | {"ready": each.is_ready} for each in conditions]
        )


def _text(status: str, sources: Sequence[dict[str, Any]]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"status": status, "sources": sources})) + b"\n"


def _told(condition: Condition) -> dict[str, Any]:
    told: dict[str, Any] = {"source": condition.source, "state": condition.state}
    if condition.reason:
        told["reason"] = condition.reason
    if condition.since is not None:
        told["since"] = datetime.fromtimestamp(condition.since, UTC).isoformat(timespec="seconds")
    return told


def _hung(seconds: float) -> str:
    return (
        f"Its loop has not turned for {in_words(seconds)}, longer than anything that it may wait for. Restart this process; no "
        f"message is lost. The log has the place where it stands."
    )


def _paused(why: PauseReason) -> str:
    """Without samples of errors: whoever may look at health need not be allowed to see what is in messages."""
    match why:
        case OperatorPause(by):
            return f"It is paused by {by}, until someone resumes it."
        case TooManyDead():
            return (
                f"It is paused: of {counted(why.ended, 'message')} that ended within {in_words(why.within)}, {why.dead:,} were "
                f"to become dead letters. A bad deploy or a changed schema does this; the log has samples."
            )
    return f"It is paused: {why.problem}. Probes find out when that is over; no message is charged."
