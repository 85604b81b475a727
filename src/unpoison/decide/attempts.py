"""Decides whether a message may start, and what its counters are when a start has ended.

Pure functions of counters and limits: what is known of a message's past adds up in the same way on every broker. Two rules
are kept by brokers themselves and stand with the counters: `Counters.returned` and `Counters.marked`.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from unpoison.model.backoff import Limits
from unpoison.model.failure import Failure
from unpoison.model.message import MOST_COUNTED, MOST_MOMENT, Counters, PastAttempt, with_past
from unpoison.model.verdict import DeadLetter, ErrorClassification, Verdict
from unpoison.model.wording import counted


@dataclass(frozen=True, slots=True)
class Run:
    """It may start, in a batch with others."""


@dataclass(frozen=True, slots=True)
class RunFresh:
    """It may start, as the first and only one in a new worker; other workers go on beside it."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """It must not start here: it has to run alone in its consumer."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further start."""

    failure: Failure


Admission: TypeAlias = Run | RunFresh | SetAside | GiveUp

RUN: Final = Run()
RUN_FRESH: Final = RunFresh()
SET_ASIDE: Final = SetAside()


def admit(counters: Counters, limits: Limits) -> Admission:
    """What to do with a message that was fetched among others."""
    if limits.highest is not None and counters.attempts >= limits.highest:
        return GiveUp(_used_up(counters, limits.highest))
    if _is_suspect(counters, limits.max_attempts):
        return SET_ASIDE
    return RUN_FRESH if counters.fresh else RUN


def admit_alone(counters: Counters, limits: Limits) -> RunFresh | GiveUp:
    """What to do with a suspect that was taken to run alone. `counters` do not hold the start for which it was taken."""
    if limits.max_attempts is not None and counters.losses and counters.charged >= limits.max_attempts:
        return GiveUp(_lost(counters))
    if limits.highest is not None and counters.charged >= limits.highest:
        return GiveUp(_used_up(counters, limits.highest))
    return RUN_FRESH


def set_aside(counters: Counters, limits: Limits) -> Counters:
    """On the way to running alone.

    A message with one attempt left never runs in company again after a loss. If it was lost twice all the same, it was on its way
    to run alone the second time, not running. Counting that would use up the attempt that can clear it.
    """
    is_last = limits.max_attempts is not None and counters.attempts >= limits.max_attempts - 1
    return msgspec.structs.replace(counters, alone=True, vanished=min(1, counters.vanished) if is_last else counters.vanished)


def failed(counters: Counters, failure: Failure, now: float) -> Counters:
    """After a start whose bad end was seen. It is charged unless the failure says otherwise."""
    charged = failure.charged and failure.started
    past = PastAttempt(counters.charged + 1, now, str(failure.classification), f"{failure.type_name}: {failure.text}"[:300])
    return msgspec.structs.replace(
        counters,
        attempts=counters.attempts + charged,
        fresh=counters.fresh or failure.blames_process,
        first_failed_at=now if counters.first_failed_at is None else counters.first_failed_at,
        history=with_past(counters.history, past),
    )


def put_off(counters: Counters, after: float, waits_for: str = "") -> Counters:
    """Of a message that must wait, through no fault of its own, for so many seconds. These do not count towards its age."""
    waited = min(MOST_MOMENT, counters.waited + after)
    times = min(MOST_COUNTED, counters.put_off + 1)
    return msgspec.structs.replace(counters, waits_for=waits_for, put_off=times, waited=waited)


def failed_on(counters: Counters, dependency: str) -> Counters:
    """Of a message that has failed on a dependency, if one is known, and waits for no more than its next attempt."""
    if counters.waits_for == dependency and not counters.put_off:
        return counters
    return msgspec.structs.replace(counters, waits_for=dependency, put_off=0)


def refunded(counters: Counters, charges: int) -> Counters:
    """With so many charges taken back: others have failed on the same dependency."""
    return msgspec.structs.replace(counters, attempts=max(0, counters.attempts - charges))


def doubt(failure: Failure, verdict: Verdict, limits: Limits) -> str:
    """Why a failure in a worker that other messages used does not count against this one; empty if it does.

    An ordinary exception counts wherever it was raised. Evidence against the process may come from another message,
    so it does not make a dead letter there. With a limit of 1 every attempt is the last and would cost a worker: there it does.
    """
    if not (failure.started and failure.charged) or failure.discard:
        return ""
    if failure.worker_damage:
        return f"its worker was damaged ({failure.worker_damage})"
    if failure.blames_process and isinstance(verdict, DeadLetter) and limits.max_attempts != 1:
        return "other messages had used its worker"
    return ""


def doubted(counters: Counters, failure: Failure, now: float) -> Counters:
    """After a failure that another message may have caused: counted like a loss in company, and the next start is in a fresh
    worker, where every failure counts."""
    booked = failed(counters, msgspec.structs.replace(failure, charged=False), now)
    return msgspec.structs.replace(booked, vanished=min(2, counters.vanished + 1), fresh=True)


def bystander(counters: Counters, *, alone: bool) -> Counters:
    """After something else brought the worker down in which this message was running."""
    return msgspec.structs.replace(counters, vanished=min(2, counters.vanished + 1), alone=counters.alone or alone)


def interrupted(counters: Counters, now: float) -> Counters:
    """After a planned stop that cut its run off: noted and not charged; the message's age is counted from the first time on."""
    first = now if counters.first_failed_at is None else counters.first_failed_at
    return msgspec.structs.replace(counters, interrupted=counters.interrupted + 1, first_failed_at=first)


def cut_off(counters: Counters) -> Failure:
    """What a run that a planned stop cut off is judged as. Only the age of the message can make it a dead letter."""
    times = counted(counters.interrupted + 1, "time")
    rule = f"planned stops cut it off, {times} by now; its handler needs more time than they leave"
    return Failure(
        classification=ErrorClassification.UNKNOWN,
        rule=rule,
        type_name="unpoison.Interrupted",
        text="a planned stop cut it off",
        charged=False,
    )


def _is_suspect(counters: Counters, limit: int | None) -> bool:
    """Whether it may have brought a consumer down more than once, or once with few attempts left."""
    few_left = limit is not None and counters.attempts > limit - 3
    return counters.alone or counters.vanished >= 2 or (counters.vanished == 1 and few_left)


def _used_up(counters: Counters, limit: int) -> Failure:
    """For a message that comes with all its attempts used already, because the limit was lowered meanwhile."""
    return Failure(
        classification=ErrorClassification.UNKNOWN,
        rule=f"it came with {counted(counters.charged, 'attempt')} behind it and the limit is {limit}, so it was not started",
        type_name="unpoison.AttemptsUsedUp",
        text=counters.history[-1].error if counters.history else "",
        started=False,
    )


def _lost(counters: Counters) -> Failure:
    """For a suspect whose consumer vanished while it was the only one running there, too often to try again."""
    return Failure(
        classification=ErrorClassification.LOST,
        rule=f"its consumer vanished {counted(counters.losses, 'time')} while it ran alone in it",
        type_name="unpoison.ConsumerVanished",
        text="; ".join(past.error for past in counters.history[-5:]),
        started=False,
    )
