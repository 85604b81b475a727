"""Decides which message is to blame when a worker dies.

It is the message that was running in it. Two things make that uncertain, and then none is charged: several messages were running
in it, or several workers died at the same moment, as when one message kills its siblings. Those that were running then run
alone, to find out which message is to blame.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unpoison.model.failure import Crash, Failure
from unpoison.model.verdict import ErrorClassification
from unpoison.workers.interface import Bystanders, Ended, Result

if TYPE_CHECKING:
    from unpoison.workers.assignments import PostMortem, Running
    from unpoison.workers.pooled_worker import PooledWorker

TOGETHER = 0.1
"""Seconds within which two deaths count as one event."""

_OWN_FAULT = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGTRAP"}
"""Signals that a process brings upon itself. Two such deaths at one moment are two culprits, not one event."""


@dataclass(frozen=True, slots=True, eq=False)
class Death:
    """A worker that died, with what it left."""

    at: float
    post_mortem: "PostMortem"
    crash: Crash
    late: "Running | None"
    was_solo: bool
    was_mistaken: bool = False
    """It was ended for a message over its limit, or while nothing ran in it: one that began in that moment is not to blame."""

    @property
    def is_ambiguous(self) -> bool:
        if self.was_mistaken:
            return False
        ran_alone = any(one.delivery.counters.alone for one in self.post_mortem.running)
        return self.late is None and not ran_alone and self.crash.signal is not None and self.crash.signal not in _OWN_FAULT


class Deaths:
    """The deaths of all workers of this process. Safe to use from several consumers' threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[Death] = []

    def note(self, worker: "PooledWorker", post_mortem: "PostMortem") -> Death:
        now = time.monotonic()
        since = worker.late or post_mortem.culprit or (post_mortem.running[0] if post_mortem.running else None)
        elapsed = None if since is None or since.since == 0 else now - since.since / 1e9
        late = worker.late if worker.late and any(one.delivery is worker.late.delivery for one in post_mortem.running) else None
        mistaken = worker.killed_idle or (worker.late is not None and late is None)
        death = Death(
            now, post_mortem, worker.process.autopsy(elapsed, was_stuck=late is not None), late, worker.is_solo, mistaken
        )
        with self._lock:
            self._recent = [other for other in self._recent if now - other.at < 10 * TOGETHER]
            self._recent.append(death)
        return death

    def is_settled(self, death: Death) -> bool:
        """True once it is known whether others died with it."""
        return not death.is_ambiguous or time.monotonic() - death.at > TOGETHER

    def together(self, death: Death) -> bool:
        with self._lock:
            return may_be_one_event(death, self._recent)

    def next_judgement(self, unjudged: Sequence[Death]) -> float:
        now = time.monotonic()
        return min((death.at + TOGETHER - now for death in unjudged), default=float("inf"))


def may_be_one_event(death: Death, others: Sequence[Death]) -> bool:
    """Whether the message behind another death may have killed this worker too, however its own one ended."""
    return death.is_ambiguous and any(other is not death and abs(other.at - death.at) <= TOGETHER for other in others)


def judge_death(death: Death, *, together: bool) -> Sequence[Result]:
    """Charge the culprit; note for the others that were running in the worker that they were there."""
    found = death.post_mortem
    running = [one.delivery for one in found.running]
    if death.was_mistaken:
        return [Bystanders(running, must_run_alone=False)]
    only = found.running[0] if death.was_solo and len(running) == 1 else None  # whatever the marks say
    culprit = death.late or only or found.culprit
    if together or culprit is None or not (found.is_sound or only):
        return [Bystanders(running, must_run_alone=True)]
    failure = _timed_out(death) if death.late else _crashed(death)
    charged = Ended([culprit.delivery], {0: failure}, in_used_worker=not death.was_solo)
    others = [delivery for delivery in running if delivery is not culprit.delivery]
    return [charged, Bystanders(others, must_run_alone=False)] if others else [charged]


def _crashed(death: Death) -> Failure:
    crash = death.crash
    how = f"was killed by {crash.signal}" if crash.signal else f"ended with exit code {crash.exit_code}"
    text = f"the worker {how} {crash.elapsed or 0:.3g} s after this message was started in it"
    return Failure(
        classification=ErrorClassification.CRASH,
        rule=f"the worker process that ran it {how}",
        type_name="unpoison.WorkerDied",
        text=text,
        traceback=crash.stack,
        crash=crash,
        blames_process=True,
    )


def _timed_out(death: Death) -> Failure:
    return Failure(
        classification=ErrorClassification.TIMEOUT,
        rule="it was over its time limit and its worker was ended",
        type_name="unpoison.Timeout",
        text=f"still running after {death.crash.elapsed or 0:.3g} s",
        traceback=death.crash.stack,
        crash=death.crash,
        blames_process=True,
    )
