"""How do a message's counters change when one of its starts has ended?

Pure functions of counters: they hold what notes on a message's past must add up to, on every broker alike.
"""

import msgspec

from bezoar.failure import ErrorClassification, Failure, fingerprint
from bezoar.message import Counters, Past

HISTORY_LIMIT = 20
"""How many past attempts travel with a message; the first ones and the latest ones are kept."""


def failed(counters: Counters, failure: Failure, now: float) -> Counters:
    """After a start whose bad end was seen. It is charged unless the failure says otherwise."""
    charged = failure.charged and failure.started
    past = Past(counters.charged + 1, now, str(failure.classification), f"{failure.type_name}: {failure.text}"[:300])
    return msgspec.structs.replace(
        counters,
        attempts=counters.attempts + charged,
        fresh=counters.fresh or failure.classification is ErrorClassification.CRASH,
        first_failed_at=now if counters.first_failed_at is None else counters.first_failed_at,
        history=_capped((*counters.history, past)),
    )


def is_suspect(counters: Counters, limit: int | None) -> bool:
    """Whether it may have brought a consumer down more than once, or once with few attempts left: then it runs alone."""
    few_left = limit is not None and counters.attempts > limit - 3
    return counters.alone or counters.unseen >= 2 or (counters.unseen == 1 and few_left)


def needs_fresh_worker(counters: Counters, limit: int | None) -> bool:
    """After a crash, and for a last attempt: a conviction must come from a worker that nobody else can have damaged."""
    is_last = limit is not None and limit > 1 and counters.charged == limit - 1
    return counters.fresh or is_last


def set_aside(counters: Counters) -> Counters:
    """On the way to running alone."""
    return msgspec.structs.replace(counters, alone=True)


def shaken(counters: Counters, *, alone: bool) -> Counters:
    """After something else brought the worker down in which this message was running."""
    return msgspec.structs.replace(counters, unseen=min(2, counters.unseen + 1), alone=counters.alone or alone)


def used_up(counters: Counters, limit: int) -> Failure:
    """For a message that comes with all its attempts used already, because the limit was lowered meanwhile."""
    return Failure(
        classification=ErrorClassification.UNKNOWN,
        rule=f"it came with {counters.charged} attempts behind it and the limit is {limit}, so it was not started",
        type_name="bezoar.AttemptsUsedUp",
        text=counters.history[-1].error if counters.history else "",
        fingerprint=fingerprint("used-up"),
        started=False,
    )


def lost(counters: Counters) -> Failure:
    """For a suspect whose consumer vanished while it was the only one running there, too often to try again."""
    return Failure(
        classification=ErrorClassification.LOST,
        rule=f"its consumer vanished {counters.losses} times while it ran alone in it",
        type_name="bezoar.ConsumerVanished",
        text="; ".join(past.error for past in counters.history[-5:]),
        fingerprint=fingerprint("lost"),
        started=False,
    )


def released(counters: Counters, *, interrupted: bool) -> Counters:
    """After a planned stop: nothing is charged; a run that was cut off is noted."""
    return msgspec.structs.replace(counters, interrupted=counters.interrupted + interrupted)


def _capped(history: tuple[Past, ...]) -> tuple[Past, ...]:
    half = HISTORY_LIMIT // 2
    return history if len(history) <= HISTORY_LIMIT else history[:half] + history[-half:]
