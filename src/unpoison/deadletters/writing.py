"""How does a failure become a dead letter?"""

import time

from unpoison.deadletters.record import DeadLetter
from unpoison.failure import Failure
from unpoison.message import Counters, Delivery
from unpoison.reading import Unreadable
from unpoison.verdict import Ruling


def letter(
    delivery: Delivery,
    counters: Counters,
    failure: Failure,
    ruling: Ruling,
    reason: str,
    *,
    consumer: str,
    code_version: str | None,
    now: float | None = None,
) -> DeadLetter:
    """Everything known about why this message is given up. `counters` already hold the start that has just failed."""
    moment = time.time() if now is None else now
    # Where it stood in the broker's own terms is added by the adapter: a receipt means nothing to anybody else.
    original: dict[str, str | int] = {"source": delivery.source}
    if isinstance(delivery, Unreadable):
        original["envelope"] = delivery.envelope
    return DeadLetter(
        message=delivery.message,
        attempts=counters.charged,
        classification=str(ruling.classification),
        rule=ruling.rule,
        reason=reason,
        error_type=failure.type_name,
        error=failure.text,
        traceback=failure.traceback,
        fingerprint=failure.fingerprint,
        first_failed_at=moment if counters.first_failed_at is None else counters.first_failed_at,
        last_failed_at=moment,
        consumer=consumer,
        code_version=code_version,
        original=original,
        crash=failure.crash,
        history=counters.history,
        replays=counters.replays,
    )
