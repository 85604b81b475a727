"""Decides for one source what may start now, and what a failure means in the light of all others.

A consumer asks before it starts messages (`room`, `admit`) and tells how they ended (`ended`, `weigh`, `refuses_letter`). Behind
it are the state machines of this package. Times are passed in; nothing here reads a clock, waits or does I/O.

An ordinary message costs nothing here: successes are counted by batch, and only messages that have failed before are looked at
one by one.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from unpoison.control.admission import PROBE_INTERVAL, DeadLetterAdmission, TooManyDead
from unpoison.control.budget import RetryBudget
from unpoison.control.changes import (
    BudgetUsedUp,
    Change,
    Meaning,
    OperatorPause,
    Paused,
    PauseReason,
    PutOff,
    Resumed,
    Slowed,
    sample_of,
    spread_of,
)
from unpoison.control.circuits import Circuits
from unpoison.control.options import NO_CONTROL, ControlOptions
from unpoison.control.pace import Pace
from unpoison.control.throttle import Throttle
from unpoison.control.turns import LONGEST_WAIT, Turns
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification

LEAST_LOOK = 0.02
"""Seconds between two looks at least: what has ended is noticed without a look."""
KEPT_WAIT = 1.0
"""Seconds for which the first refused dead letters are put off. Their source is paused: being due early costs nothing."""
SAY_EVERY = 60.0
PAUSES_KNOWN = 20
GARBAGE = frozenset({"unreadable", "too-large", "encoding", "not-json", "too-deep", "integer-range", "float-range"})
"""Rules by which a message is refused whatever the code is like: no deploy cures them, so they say nothing about one."""


class SourceControl:
    """The state machines of one source. Used by one thread."""

    def __init__(self, options: ControlOptions = NO_CONTROL) -> None:
        self.options = options
        self.changes: list[Change] = []
        """What has changed since this was last emptied, to be logged."""
        self.circuits = None if options.breaker is None else Circuits(options.breaker, options.depends_on, self.changes)
        self.admission = None if options.admission is None else DeadLetterAdmission(options.admission)
        self._budget = None if options.budget is None else RetryBudget(options.budget)
        self._throttle, self._pace = Throttle(), Pace()
        self._operator: OperatorPause | None = None
        self._probes: set[str] = set()
        """Running messages that find out whether dead letters are still being made."""
        self._turns = Turns()
        self.put_off_by_budget = 0
        """Retries that were put off because the retry budget was used up."""
        self._put_off, self._said_budget_at = 0, float("-inf")
        self._paused_since: float | None = None
        self._told: PauseReason | None = None
        """Why it is paused, as was told last."""
        self._pauses: deque[tuple[float, float]] = deque(maxlen=PAUSES_KNOWN)

    @property
    def pause(self) -> PauseReason | None:
        """Why nothing but probes may start; None if the source is not paused."""
        if self._operator is not None:
            return self._operator
        if self.admission is not None and self.admission.pause is not None:
            return self.admission.pause
        return None if self.circuits is None else self.circuits.outage

    @property
    def is_paused(self) -> bool:
        return self._paused_since is not None

    def pauses(self) -> set[str]:
        """Everything that pauses the source by itself: outage, admission, operator. Any thread may ask."""
        has_outage = self.circuits is not None and self.circuits.outage is not None
        has_letters = self.admission is not None and self.admission.pause is not None
        found = {"operator": self._operator is not None, "admission": has_letters, "outage": has_outage}
        return {reason for reason, holds in found.items() if holds}

    def budget_left(self, now: float) -> float | None:
        """How much of the retry budget is left, from 0 to 1; None without one. Any thread may ask."""
        return None if self._budget is None else self._budget.left(now)

    @property
    def is_throttled(self) -> bool:
        """Whether a dependency slows the source down."""
        return self._throttle.is_slowed

    @property
    def is_calm(self) -> bool:
        """Nothing limits what may start."""
        is_free = self.circuits is None or self.circuits.pausing is None
        return is_free and self._paused_since is None and not self._pace.is_limited and not self._throttle.is_slowed

    def room(self, now: float) -> int | None:
        """How many messages may start now; None if there is no limit."""
        if self.is_calm:
            return None
        circuit = None if self.circuits is None else self.circuits.room(now)
        self._follow(now)
        if self._operator is not None:
            return 0
        if self.admission is not None and (probe := self.admission.next_probe_in(now)) is not None:
            return int(probe == 0.0 and not self._probes)
        limits = (self._throttle.room(now), self._pace.room(now), circuit)
        return min((limit for limit in limits if limit is not None), default=None)

    def expire(self, now: float) -> None:
        """End outages whose time is over, though no message asks for what was down."""
        if self.circuits is not None:
            self.circuits.expire(now)

    def next_look_in(self, now: float) -> float:
        """Seconds until `room` may be larger without anything having ended."""
        if self.is_calm or self._operator is not None:
            return float("inf")
        if self.admission is not None and (probe := self.admission.next_probe_in(now)) is not None:
            return probe or float("inf")  # if it is due, the source is empty or a probe runs: either end is told
        circuit = 0.0 if self.circuits is None else self.circuits.next_probe_in(now)
        if not circuit and not self._throttle.is_slowed and not self._pace.is_limited:
            return float("inf")
        return max(LEAST_LOOK, self._throttle.next_start_in(now), self._pace.next_start_in(now), circuit)

    def fetched(self, asked: int, got: int, now: float) -> None:
        """The broker was asked for so many messages, and had so many."""
        if self._pace.is_limited and (self.circuits is None or self.circuits.pausing is None):
            self._pace.fetched(asked, got, now)

    def admit(self, deliveries: Sequence[Delivery], now: float) -> tuple[Sequence[Delivery], Sequence[PutOff]]:
        """Those of these messages that may start now, which counts as a start, and those that are put off."""
        retried = [delivery for delivery in deliveries if delivery.counters.history]
        put_off = [refused for delivery in retried if (refused := self._refused(delivery, now)) is not None]
        started = deliveries
        if put_off:
            waiting = {id(each.delivery) for each in put_off}  # what senders call their messages need not be unique
            started = [delivery for delivery in deliveries if id(delivery) not in waiting]
        self.started(started, len(deliveries) - len(retried), now)
        return started, put_off

    def started(self, deliveries: Sequence[Delivery], firsts: int, now: float) -> None:
        """These start now, so many of them for the first time."""
        if not deliveries:
            return
        self._pace.started(len(deliveries), now)
        self._throttle.started(len(deliveries), now)
        if self._budget is not None:
            self._budget.first_starts(firsts)
        if self.admission is not None and self.admission.pause is not None:
            self.admission.probe_started(now)
            self._probes.update(delivery.id for delivery in deliveries)
        if self.circuits is not None:
            self.circuits.started(deliveries, now)

    def _refused(self, delivery: Delivery, now: float) -> PutOff | None:
        """A message that has failed before is put off while its dependency is down or the retry budget is used up."""
        counters = delivery.counters
        if self.admission is not None and _was_kept(delivery) and not self.admission.tries_kept(now):
            return PutOff(delivery, _long_wait(delivery, now))
        if self.circuits is not None:
            if (waits := self.circuits.refused(delivery, now)) is not None:
                return waits
            self.circuits.watch(delivery)
            if self.circuits.pausing is not None:
                return None
        # A start that was not charged multiplies no load: its handler or its server asked for the next one.
        waited_for_outage = bool(counters.waits_for and counters.put_off)
        if self._budget is None or not counters.attempts or waited_for_outage or self._budget.grant(1, now):
            return None
        if self.circuits is not None:
            self.circuits.forget([delivery], now)
        return PutOff(delivery, self._wait_for_budget(delivery, now))

    def _wait_for_budget(self, delivery: Delivery, now: float) -> float:
        """Until the turn of this retry comes, in the order in which they are put off; longer each time."""
        assert self._budget is not None  # noqa: S101 - asked only if there is one
        self._put_off += 1
        self.put_off_by_budget += 1
        if now - self._said_budget_at >= SAY_EVERY:
            self._said_budget_at = now
            self.changes.append(BudgetUsedUp(self._put_off, self._budget.share))
            self._put_off = 0
        return self._turns.wait(delivery.counters.put_off, spread_of(delivery.id, now), self._budget.seconds_each, now)

    def ended(self, good: Sequence[Delivery], failed: int, now: float) -> None:
        """These have succeeded, and so many have failed. To be told before the failures of the same batch are weighed."""
        if self.circuits is not None:
            self.circuits.ended(good, failed, now)
        self._handled(good, now)

    def _handled(self, deliveries: Sequence[Delivery], now: float) -> None:
        """So many became no dead letters. If one of them was a probe, dead letters are admitted again."""
        if self.admission is not None:
            self.admission.succeeded(len(deliveries), now)
            if self._probes and not self._probes.isdisjoint([delivery.id for delivery in deliveries]):
                self._probes.clear()
                self.admission.try_again(now)
        if self._paused_since is not None:
            self._follow(now)

    def weigh(self, delivery: Delivery, failure: Failure, now: float) -> Meaning:
        """What the failure of a message means in the light of all others."""
        if failure.discard:
            self._handled([delivery], now)  # the handler has looked at it, and says that it is done with
        self._probes.discard(delivery.id)
        if failure.classification is ErrorClassification.THROTTLED:
            self._throttled(delivery, failure, now)
        if self.circuits is None:
            return Meaning(failure)
        meaning = self.circuits.weigh(delivery, failure, now)
        if meaning.wait is not None:
            self._follow(now)
        return meaning

    def refuses_letter(self, delivery: Delivery, failure: Failure, now: float) -> float | None:
        """A message is to become a dead letter. None if it may; else for how many seconds it is kept instead."""
        if self.admission is None or not _counts(failure):
            return None
        if self.admission.admits(sample_of(failure), now, was_kept=_was_kept(delivery)):
            return None
        self._follow(now)
        is_first = self.admission.pause is not None and self.admission.pause.interval == PROBE_INTERVAL
        if is_first and failure.started and not delivery.counters.put_off:
            return KEPT_WAIT * (1 + spread_of(delivery.id, now))
        return _long_wait(delivery, now)  # the next probes are others: this one is known to fail

    def forget(self, deliveries: Iterable[Delivery], now: float) -> None:
        """These were started and did not end here: they say nothing."""
        if self._probes:
            self._probes -= {delivery.id for delivery in deliveries}
        if self.circuits is not None:
            self.circuits.forget(deliveries, now)

    def taken_back(self, deliveries: Sequence[Delivery], now: float) -> None:
        """These were to start and have not: each counts as a start when it does."""
        if not deliveries:
            return
        self.forget(deliveries, now)
        self._pace.not_started(len(deliveries), now)
        self._throttle.not_started(len(deliveries), now)
        if self._budget is not None:
            self._budget.not_started(sum(not delivery.counters.history for delivery in deliveries))

    def dropped(self, now: float) -> None:
        """Nothing that was started is ours any more."""
        self._probes.clear()
        if self.circuits is not None:
            self.circuits.drop_all(now)

    def paused_for(self, seconds: float, now: float) -> float:
        """How many of the last so many seconds the source was paused."""
        since = now - seconds
        over = sum(max(0.0, end - max(begin, since)) for begin, end in self._pauses)
        return over if self._paused_since is None else over + now - max(self._paused_since, since)

    def paused_so_far(self, now: float) -> float:
        """For how many seconds the source has been paused; 0 if it is not."""
        return 0.0 if self._paused_since is None else max(0.0, now - self._paused_since)

    def _throttled(self, delivery: Delivery, failure: Failure, now: float) -> None:
        dependency = failure.dependency or self.options.depends_on or failure.type_name
        is_slowed = self._throttle.throttled(delivery.id, dependency, failure.retry_after, now, sample_of(failure))
        if is_slowed and self._throttle.evidence is not None:
            self.changes.append(Slowed(self._throttle.evidence, self._throttle.next_start_in(now)))

    def pause_by_operator(self, pause: OperatorPause | None, now: float, since: float | None = None) -> None:
        """A person has paused the source, or resumed it (None). `since`: before this process began, by its clock."""
        if pause != self._operator:
            self._operator = pause
            if self.circuits is not None:
                self.circuits.go_on(now) if pause is None else self.circuits.hold(now)
            self._follow(now, since)

    def resume_letters(self, now: float) -> None:
        """Dead letters are admitted again: the code is new, or a person says so. That ends a probation too."""
        if self.admission is not None:
            self._probes.clear()
            self.admission.resume()
            self._follow(now)

    def letters_paused_no_longer(self, now: float, *, on_probation: bool) -> None:
        """The pause because of dead letters, if there is one here, is over for this consumer. `on_probation`: because messages
        have succeeded in another one."""
        if self.admission is None or self.admission.pause is None:
            return
        if not on_probation:
            self.resume_letters(now)
            return
        self._probes.clear()
        self.admission.try_again(now)
        self._follow(now)

    def adopt_letters_pause(self, pause: TooManyDead, now: float) -> None:
        """Another consumer of the fleet has paused the source."""
        if self.admission is not None:
            self.admission.adopt(pause, now)
            self._follow(now, pause.since)

    def rate(self, now: float) -> float | None:
        """How many messages it starts a second, or did before it was paused, as far as is known."""
        return self._pace.rate(now)

    def learn_rate(self, rate: float) -> None:
        """How many messages of the source a consumer started a second before a pause that has begun before this process."""
        self._pace.learn(rate)

    def share_budget(self, consumers: int) -> None:
        """So many consumers of the fleet share what is always allowed."""
        if self._budget is not None:
            self._budget.divide_floor(consumers)

    def _follow(self, now: float, since: float | None = None) -> None:
        """Note whether the source is paused now, and why: a second reason may outlast the first."""
        reason, before = self.pause, self._told
        if reason is not None and reason != before:
            self.changes.append(Paused(reason))
        self._told = reason
        if reason is not None and self._paused_since is None:
            self._pace.measure(now)
            ended = self._pauses[-1][1] if self._pauses else float("-inf")
            self._paused_since = now if since is None else min(now, max(since, ended))
        elif reason is None and self._paused_since is not None and before is not None:
            self._pauses.append((self._paused_since, now))
            is_on_probation = self.admission is not None and self.admission.is_on_probation
            self.changes.append(Resumed(now - self._paused_since, before, is_on_probation))
            self._paused_since = None
            self._pace.begin(now)


def _was_kept(delivery: Delivery) -> bool:
    """Whether it was put off, and not because of an outage. Where the retry budget was the reason, little is lost by that."""
    return bool(delivery.counters.put_off and not delivery.counters.waits_for)


def _long_wait(delivery: Delivery, now: float) -> float:
    return LONGEST_WAIT * (1 + spread_of(delivery.id, now)) / 2


def _counts(failure: Failure) -> bool:
    """Whether a dead letter of this failure says anything about the code or the schema."""
    return not (failure.classification is ErrorClassification.INVALID and failure.rule in GARBAGE)
