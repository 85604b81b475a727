"""Turns results into a settlement, has the broker store it, and reports it.

`SettlementBuilder` applies the pure rules of `decide` to what ended. `Settler` hands the settlement to the broker: copies are
stored first and originals let go last, so a crash here repeats work and never loses it. Nothing is reported before it is stored.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from unpoison.control.source import SourceControl
from unpoison.decide import attempts
from unpoison.decide.policy import judge
from unpoison.errors import PAUSES, OwnershipLost
from unpoison.model import verdict
from unpoison.model.backoff import Limits
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import Failure
from unpoison.model.fingerprint import marked
from unpoison.model.message import Counters, Delivery, MessageMetadata, metadata_of
from unpoison.model.verdict import Ruling
from unpoison.port.broker import Broker, Dead, Kept, Settlement
from unpoison.port.reading import Unreadable, failure_of
from unpoison.reporting.observer import Event
from unpoison.reporting.report import Report
from unpoison.workers.interface import Bystanders, Ended, Result

if TYPE_CHECKING:
    from unpoison.workers.hooks import HookCaller


@dataclass(frozen=True, slots=True)
class Skipped:
    """Tombstones that count as done without the handler."""

    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class NewSuspects:
    """They must run alone, so they are not started here."""

    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class Waiting:
    """They have failed before and must not start for so many seconds: what they need is down, or the retry budget is used up."""

    deliveries: Sequence[Delivery]
    after: float
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """They have no attempts left, or cannot be read. `failure` says why."""

    deliveries: Sequence[Delivery]
    failure: Failure


NotStarted: TypeAlias = Skipped | NewSuspects | Waiting | GivenUp


@dataclass(frozen=True, slots=True)
class Judged:
    """What was decided: the settlement for the broker, and what to report once it is stored."""

    settlement: Settlement
    done: int
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True)
class SettlementBuilder:
    """Decides about results. A batch of successes takes a short way: no object is made for any of its messages.

    `control` is told what succeeded and asked what a failure means in the light of all others.
    """

    limits: Limits
    consumer: str
    code_version: str | None
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    control: SourceControl = field(default_factory=SourceControl)

    def __call__(self, results: Sequence[Result | NotStarted]) -> Judged:
        if len(results) == 1 and isinstance(only := results[0], Ended) and not only.failures:
            self.control.ended(only.deliveries, 0, self.monotonic())
            return Judged(Settlement(gone=only.deliveries), len(only.deliveries))
        gone: list[Delivery] = []
        kept: list[Kept] = []
        events: list[Event] = []
        for result in results:
            match result:
                case Ended():
                    good = result.good()
                    self.control.ended(good, len(result.failures), self.monotonic())
                    gone += good
                    events += self._failed(result)
                case Bystanders(deliveries, must_run_alone):
                    self.control.forget(deliveries, self.monotonic())
                    kept += [Kept(each, attempts.bystander(each.counters, alone=must_run_alone)) for each in deliveries]
                case Waiting(deliveries, after, waits_for):
                    kept += [Kept(each, self._put_off(each.counters, after, waits_for), after) for each in deliveries]
                case NewSuspects(deliveries):
                    kept += [Kept(each, attempts.set_aside(each.counters, self.limits)) for each in deliveries]
                case Skipped(deliveries):
                    gone += deliveries
                case GivenUp(deliveries, failure):
                    events += [self._admitted(self._event(each, failure), self.monotonic()) for each in deliveries]
        return self._judged(gone, kept, events)

    def _judged(self, gone: list[Delivery], kept: list[Kept], events: Sequence[Event]) -> Judged:
        done, dead = len(gone), []
        for event in events:
            match event.ruling.verdict:
                case verdict.Retry(after):
                    kept.append(Kept(event.delivery, event.counters, after.total_seconds()))
                case verdict.DeadLetter(reason):
                    dead.append(self._dead(event, reason))
                case verdict.Discard():
                    gone.append(event.delivery)
        return Judged(Settlement(gone, kept, dead), done, events)

    def released(self, unstarted: Sequence[Delivery], cut_off: Sequence[Delivery]) -> Judged:
        """What a planned stop hands back, uncharged. A message that stops have cut off until it is too old is given up."""
        kept = [Kept(delivery, delivery.counters) for delivery in unstarted]
        dead: list[Dead] = []
        events: list[Event] = []
        for delivery in cut_off:
            event = self._event(delivery, attempts.cut_off(delivery.counters))
            match event.ruling.verdict:
                case verdict.DeadLetter(reason):
                    dead.append(self._dead(event, reason))
                    events.append(event)
                case _:
                    kept.append(Kept(delivery, attempts.interrupted(delivery.counters, self.clock())))
        return Judged(Settlement(kept=kept, dead=dead), 0, events)

    def bare(self, delivery: Delivery, failure: Failure) -> Settlement:
        """A dead letter with as little as possible in it, for a message that a fault in our code keeps from being judged."""
        reason = f"{failure.classification}: {failure.rule}"
        ruling = Ruling(verdict.DeadLetter(reason), failure.classification, failure.rule)
        return Settlement(dead=[Dead(delivery, self._letter(delivery, Counters(), failure, ruling, reason))])

    def _failed(self, ended: Ended) -> Sequence[Event]:
        return [
            self._weighed(ended.deliveries[n], failure, ended.exceptions.get(n), ended.in_used_worker)
            for n, failure in ended.failures.items()
        ]

    def _weighed(self, delivery: Delivery, failure: Failure, exception: BaseException | None, in_used_worker: bool) -> Event:
        """A failure, judged in the light of all others: it may be an outage, or one dead letter too many."""
        now = self.monotonic()
        meaning = self.control.weigh(delivery, failure, now)
        event = self._event(delivery, meaning.failure, exception, in_used_worker)
        match event.ruling.verdict:
            case verdict.Retry() if meaning.wait is not None:
                event = self._waiting(event, meaning.wait, meaning.waits_for, f"outage: {event.failure.rule}")
            case verdict.DeadLetter():
                event = self._admitted(event, now)
            case _ if event.failure.started:
                event = replace(event, counters=attempts.failed_on(event.counters, meaning.waits_for))
        return replace(event, counters=attempts.refunded(event.counters, meaning.refund)) if meaning.refund else event

    def _admitted(self, event: Event, now: float) -> Event:
        """What would be a dead letter is kept if there are too many of these. The attempt does not count, unless it was one that
        ends processes: such a message is started no more often than it may be, and nothing is counted that was no start."""
        delivery, failure, ruling = event.delivery, event.failure, event.ruling
        if not isinstance(ruling.verdict, verdict.DeadLetter):
            return event
        wait = self.control.refuses_letter(delivery, failure, now)
        if wait is None:
            return event
        if not failure.started:
            event = replace(event, counters=delivery.counters)
        elif not failure.blames_process:
            failure = msgspec.structs.replace(failure, charged=False)
            event = replace(event, failure=failure, counters=attempts.failed(delivery.counters, failure, self.clock()))
        rule = f"admission: not made a dead letter, since too many are ({ruling.verdict.reason})"
        return self._waiting(event, wait, "", rule, charged=failure.started and failure.charged)

    def _waiting(self, event: Event, wait: float, waits_for: str, rule: str, *, charged: bool = False) -> Event:
        """Not given up: it is put off for so many seconds."""
        ruling = Ruling(verdict.Retry(timedelta(seconds=wait), charged), event.ruling.classification, rule)
        return replace(event, ruling=ruling, counters=self._put_off(event.counters, wait, waits_for))

    def _put_off(self, counters: Counters, wait: float, waits_for: str) -> Counters:
        """The time of a pause is left out of every message's age (`_aged`), so no wait in it is noted beside that."""
        return attempts.put_off(counters, 0.0 if self.control.is_paused else wait, waits_for)

    def _event(
        self, delivery: Delivery, failure: Failure, exception: BaseException | None = None, in_used_worker: bool = False
    ) -> Event:
        now, failure = self.clock(), marked(failure, delivery.source)
        metadata = metadata_of(delivery, failure)
        ruling = judge(self.limits, delivery.id, self._aged(metadata, delivery, now), failure, datetime.fromtimestamp(now, UTC))
        if in_used_worker and (why := attempts.doubt(failure, ruling.verdict, self.limits)):
            counters, ruling = attempts.doubted(delivery.counters, failure, now), _in_doubt(ruling, why)
        else:
            counters = attempts.failed(delivery.counters, failure, now)
        return Event(delivery, counters, self._complete(metadata, failure, counters), failure, ruling, exception)

    def _aged(self, metadata: MessageMetadata, delivery: Delivery, now: float) -> MessageMetadata:
        """Time in which it could not start, because of an outage, a pause or the retry budget, does not make a message older."""
        first = metadata.first_failure_time
        if first is None:
            return metadata
        age = now - first.timestamp()
        waited = delivery.counters.waited + self.control.paused_for(age, self.monotonic())
        first = datetime.fromtimestamp(now - max(0.0, age - waited), UTC)
        return replace(metadata, first_failure_time=first) if waited else metadata

    def _complete(self, metadata: MessageMetadata, failure: Failure, counters: Counters) -> MessageMetadata:
        """What hooks get: with the limit that held, and the time of the first failure, which may be this one."""
        limit = self.limits.max_attempts if failure.max_attempts is None else failure.max_attempts
        first = metadata.first_failure_time
        if first is None and counters.first_failed_at is not None:
            first = datetime.fromtimestamp(counters.first_failed_at, UTC)
        return replace(metadata, max_attempts=limit, first_failure_time=first)

    def _letter(self, delivery: Delivery, counters: Counters, failure: Failure, ruling: Ruling, reason: str) -> DeadLetter:
        host, version, now = self.consumer, self.code_version, self.clock()
        return letter(delivery, counters, failure, ruling, reason, consumer=host, code_version=version, now=now)

    def _dead(self, event: Event, reason: str) -> Dead:
        return Dead(event.delivery, self._letter(event.delivery, event.counters, event.failure, event.ruling, reason))


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
    now = time.time() if now is None else now
    # The adapter adds where the message was in the broker's own terms: only it can read its receipts.
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
        fingerprint=marked(failure, delivery.source).fingerprint,
        first_failed_at=now if counters.first_failed_at is None else counters.first_failed_at,
        last_failed_at=now,
        consumer=consumer,
        code_version=code_version,
        original=original,
        crash=failure.crash,
        history=counters.history,
        replays=counters.replays,
    )


def _in_doubt(ruling: Ruling, why: str) -> Ruling:
    """Neither charged nor given up: another message may have caused it."""
    after = ruling.verdict.after if isinstance(ruling.verdict, verdict.Retry) else timedelta()
    rule = f"in-doubt: {why}, so it runs again in a fresh worker ({ruling.rule})"
    return Ruling(verdict.Retry(after, charged=False), ruling.classification, rule)


class Settler:
    """Settles what came of the messages of one source, then reports it.

    `wait(tries)` waits before the next try while the broker cannot store; it answers False once a stop has used up its grace.
    `on_settled` and `on_ownership_lost` are called after the broker has confirmed, or has said that others have the messages.
    """

    def __init__(
        self,
        source: str,
        broker: Broker,
        report: Report,
        hooks: "HookCaller",
        build: SettlementBuilder,
        *,
        wait: Callable[[int], bool],
        on_settled: Callable[[Settlement], None],
        on_ownership_lost: Callable[[OwnershipLost], None],
    ) -> None:
        self._source, self._broker, self._report, self._hooks, self._build = source, broker, report, hooks, build
        self._wait, self._on_settled, self._on_ownership_lost = wait, on_settled, on_ownership_lost
        self.in_hand: Sequence[Result | NotStarted] = ()
        """What is being settled right now."""
        self.is_dlq_writable = True
        """Whether dead letters could be stored when that was last tried."""

    def settle(self, results: Sequence[Result]) -> None:
        if results:
            self._tell(*self._judge_and_store(results))

    def settle_unstarted(self, batches: Sequence[NotStarted]) -> None:
        """A message that cannot be set aside or given up, by a fault of our own, would end every consumer that comes to this
        point. So it becomes a dead letter that needs as little as possible."""
        if not batches:
            return
        if any(isinstance(batch, Skipped) for batch in batches):
            self._report.skips_tombstones(self._source)
        try:
            judged, letter_ids = self._judge_and_store(batches)
        except Exception as error:
            if len(batches) == len(batches[0].deliveries) == 1:
                self._give_up_barely(batches[0], error)
                return
            for batch in batches:
                for delivery in batch.deliveries:
                    self.settle_unstarted([replace(batch, deliveries=[delivery])])
        else:
            self._tell(judged, letter_ids)

    def release(self, unstarted: Sequence[Delivery], cut_off: Sequence[Delivery] = ()) -> None:
        """Hand back what was not started and what a stop cut off."""
        if not (unstarted or cut_off):
            return
        judged = self._build.released(unstarted, cut_off)
        letter_ids = self._store(judged.settlement)
        if letter_ids is not None:
            self._report.released(self._source, len(unstarted), interrupted=False)
            self._report.released(self._source, len(cut_off) - len(judged.events), interrupted=True)
        self._tell(judged, letter_ids)

    def _judge_and_store(self, results: Sequence[Result | NotStarted]) -> tuple[Judged, Sequence[str | None] | None]:
        self.in_hand = results
        judged = self._build(results)
        letter_ids = self._store(judged.settlement)
        self.in_hand = ()
        return judged, letter_ids

    def _give_up_barely(self, batch: NotStarted, error: Exception) -> None:
        (delivery,) = batch.deliveries
        failure = batch.failure if isinstance(batch, GivenUp) else failure_of(error, "setting it aside")
        if self._store(self._build.bare(delivery, failure)) is not None:
            self._report.given_up(delivery, failure, error)
        self.in_hand = ()

    def _store(self, settlement: Settlement) -> Sequence[str | None] | None:
        """The ids of the dead letters once the broker has confirmed; None if it was not settled. While the broker cannot store,
        this source is paused and nothing is dropped."""
        tries = 0
        while True:
            try:
                letter_ids = self._broker.settle(settlement)
            except OwnershipLost as error:
                self._on_ownership_lost(error)
                return None
            except PAUSES as error:
                self.is_dlq_writable = self.is_dlq_writable and not settlement.dead
                self._report.paused(self._source, error)
                if not self._wait(tries):
                    return None
                tries += 1
            else:
                if settlement.dead:
                    self.is_dlq_writable = True
                self._report.resumed(self._source)
                self._on_settled(settlement)
                return letter_ids or ()

    def _tell(self, judged: Judged, letter_ids: Sequence[str | None] | None) -> None:
        """Report and call hooks, unless it was not stored (None)."""
        if letter_ids is None:
            return
        self._report.done(self._source, judged.done)
        ids = iter(letter_ids)
        for event in judged.events:
            is_dead = isinstance(event.ruling.verdict, verdict.DeadLetter)
            self._report.failed(event, next(ids, None) if is_dead else None)
            self._hooks.call(event)
