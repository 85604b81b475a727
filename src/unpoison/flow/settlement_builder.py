"""How does what ended become what the broker is told?"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from unpoison.decide import attempts
from unpoison.decide.policy import judge
from unpoison.model import verdict
from unpoison.model.backoff import Limits
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery, MessageMetadata, metadata_of
from unpoison.model.verdict import Ruling
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.port.reading import Unreadable
from unpoison.reporting.report import Event
from unpoison.workers.interface import Ended

# How does a failure become a dead letter?


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


# (the part that gave this module its question)


@dataclass(frozen=True, slots=True)
class Judged:
    """What was decided: the settlement for the broker, and what to say about it afterwards."""

    settlement: Settlement
    done: int
    events: Sequence[Event] = ()
    letter_ids: Sequence[str | None] = ()
    """Of the events that end in a dead letter, in their order; known once the broker has stored them."""


@dataclass(frozen=True, slots=True)
class SettlementBuilder:
    """Applies the decision core to what ended. Successes take a short way: no object is made for any of them."""

    limits: Limits
    consumer: str
    code_version: str | None
    clock: Callable[[], float] = time.time

    def __call__(self, ended: Sequence[Ended]) -> Judged:
        if len(ended) == 1 and ended[0].is_clean:
            return Judged(Settlement(gone=ended[0].deliveries), len(ended[0].deliveries))
        gone = [delivery for batch in ended for delivery in batch.good()]
        done = len(gone)
        kept = [kept for batch in ended for kept in self._kept(batch)]
        dead: list[Dead] = []
        events = [self._event(batch, n) for batch in ended for n in batch.failures]
        for event in events:
            match event.ruling.verdict:
                case verdict.Retry(after):
                    kept.append(Kept(event.delivery, event.counters, after.total_seconds()))
                case verdict.DeadLetter(reason):
                    dead.append(Dead(event.delivery, self._letter(event, reason)))
                case verdict.Discard():
                    gone.append(event.delivery)
        return Judged(Settlement(gone, kept, dead), done, events)

    def released(self, unstarted: Sequence[Delivery], cut_off: Sequence[Delivery]) -> Judged:
        """What a planned stop hands back. Nobody is charged; but what stops have cut off until it is too old is given up."""
        kept = [Kept(delivery, delivery.counters) for delivery in unstarted]
        dead: list[Dead] = []
        events: list[Event] = []
        for delivery in cut_off:
            event = self._event(Ended([delivery], {0: attempts.cut_off(delivery.counters)}), 0)
            match event.ruling.verdict:
                case verdict.DeadLetter(reason):
                    dead.append(Dead(delivery, self._letter(event, reason)))
                    events.append(event)
                case _:
                    kept.append(Kept(delivery, attempts.interrupted(delivery.counters, self.clock())))
        return Judged(Settlement(kept=kept, dead=dead), 0, events)

    def given_up(self, delivery: Delivery, failure: Failure) -> Settlement:
        """A dead letter with as little as possible in it, for a message that cannot be judged because of a fault in our code."""
        reason = f"{failure.classification}: {failure.rule}"
        ruling = Ruling(verdict.DeadLetter(reason), failure.classification, failure.rule)
        bare = letter(
            delivery,
            Counters(),
            failure,
            ruling,
            reason,
            consumer=self.consumer,
            code_version=self.code_version,
            now=self.clock(),
        )
        return Settlement(dead=[Dead(delivery, bare)])

    def _kept(self, batch: Ended) -> Sequence[Kept]:
        """Those that start again without being charged: set aside, or in a worker that another message brought down."""
        if batch.aside:
            return [Kept(delivery, attempts.set_aside(delivery.counters, self.limits)) for delivery in batch.deliveries]
        return [
            Kept(batch.deliveries[n], attempts.bystander(batch.deliveries[n].counters, alone=alone))
            for n, alone in batch.bystanders.items()
        ]

    def _event(self, batch: Ended, n: int) -> Event:
        delivery, failure, now = batch.deliveries[n], batch.failures[n], self.clock()
        metadata = metadata_of(delivery, failure)
        ruling = judge(self.limits, delivery.id, metadata, failure, datetime.fromtimestamp(now, UTC))
        if batch.in_used_worker and (why := attempts.doubt(failure, ruling.verdict, self.limits)):
            counters, ruling = attempts.doubted(delivery.counters, failure, now), _in_doubt(ruling, why)
        else:
            counters = attempts.failed(delivery.counters, failure, now)
        return Event(delivery, counters, self._complete(metadata, failure, counters), failure, ruling, batch.exceptions.get(n))

    def _complete(self, metadata: MessageMetadata, failure: Failure, counters: Counters) -> MessageMetadata:
        """What hooks are told: with the limit that held, and the time of the first failure, which may be this one."""
        limit = self.limits.max_attempts if failure.max_attempts is None else failure.max_attempts
        first = metadata.first_failure_time
        if first is None and counters.first_failed_at is not None:
            first = datetime.fromtimestamp(counters.first_failed_at, UTC)
        return replace(metadata, max_attempts=limit, first_failure_time=first)

    def _letter(self, event: Event, reason: str) -> DeadLetter:
        return letter(
            event.delivery,
            event.counters,
            event.failure,
            event.ruling,
            reason,
            consumer=self.consumer,
            code_version=self.code_version,
            now=self.clock(),
        )


def _in_doubt(ruling: Ruling, why: str) -> Ruling:
    """Neither charged nor given up: another message may have done it."""
    after = ruling.verdict.after if isinstance(ruling.verdict, verdict.Retry) else timedelta()
    rule = f"in-doubt: {why}, so it runs again in a fresh worker ({ruling.rule})"
    return Ruling(verdict.Retry(after, charged=False), ruling.classification, rule)
