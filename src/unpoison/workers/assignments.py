"""What a worker was given, what has ended, and what was running when it died.

Assignments are the consumer's record of one worker. They read the worker's marks, and believe them only as far as they can be
true: if a worker overwrote them, none of its messages counts as ended.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.reporting.numbers import Durations
from unpoison.worker import wire
from unpoison.worker.marks import BATCH, BATCHES, FAILED, IDLE, Marks
from unpoison.workers.interface import Ended


@dataclass(frozen=True, slots=True)
class Running:
    """A message whose handler is running, since when (CLOCK_MONOTONIC, ns), and in which lane."""

    delivery: Delivery
    since: int
    lane: int = 0


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What a dead worker leaves: what had ended, what was running, what never began.

    `culprit` is the one that was certainly running; None if several may have been, or none was.
    `is_sound` is False if the marks contradict themselves.
    """

    ended: Ended
    running: Sequence[Running]
    unstarted: Sequence[Delivery]
    culprit: Running | None
    is_sound: bool = True


Send = Callable[[wire.ToWorker], wire.Sent]

_body = attrgetter("body")


def weight(deliveries: Iterable[Delivery]) -> int:
    """Bytes in these bodies. Computed for every message, so there is no Python in the loop."""
    return sum(map(len, map(_body, deliveries)))


@dataclass(slots=True)
class _Batch:
    slot: int
    code: int
    deliveries: Sequence[Delivery]
    end: int
    weight: int
    failures: dict[int, Failure] = field(default_factory=dict)
    took: dict[int, int] = field(default_factory=dict)
    """For how many nanoseconds those ran that failed. A time in the marks would hold what was done about it too."""


_CODES = [code for code in range(2, 256) if code not in IDLE.to_bytes(8)]
"""Not a byte of IDLE, which a stray write may have from there."""


def _new_code() -> int:
    return random.choice(_CODES)  # noqa: S311 - against stray writes, not against attackers


class BatchAssignments:
    """For a worker that runs one message at a time, in batches."""

    def __init__(self, marks: Marks, send: Send, durations: Durations | None = None, *, needs_delivery: bool) -> None:
        self._marks, self._send, self._durations, self._needs_delivery = marks, send, durations, needs_delivery
        self._batches: list[_Batch] = []

    def free(self) -> int:
        """How many more batches it can take."""
        return BATCHES - len(self._batches)

    def held(self) -> int:
        """How many messages it has."""
        return sum(batch.end for batch in self._batches)

    def weight(self) -> int:
        """How many bytes those are, about: what was taken back may still be counted."""
        return sum(batch.weight for batch in self._batches)

    def give(self, deliveries: Sequence[Delivery]) -> wire.Sent:
        """Hand these over. They are recorded only if the answer is yes."""
        slot = 0 if not self._batches or self._batches[0].slot == 1 else 1
        batch = _Batch(slot, _new_code(), deliveries, len(deliveries), weight(deliveries))
        self._marks.prepare_batch(slot, len(deliveries))
        if self._needs_delivery:
            said = wire.Run(slot, batch.code, [], [_unreceipted(delivery) for delivery in deliveries])
        else:
            said = wire.Run(slot, batch.code, [None if each.is_tombstone else each.body for each in deliveries])
        sent = self._send(said)
        if sent is wire.Sent.YES:
            self._batches.append(batch)
        return sent

    def heard(self, said: wire.Ended | wire.Failed) -> Ended | None:
        """Record what the worker reports; a result if something is over. Raises ValueError if the report cannot be true."""
        batch = next((batch for batch in self._batches if batch.slot == said.slot), None)
        if batch is None:
            raise ValueError(f"the worker reports a batch that it does not have ({said.slot})")
        if isinstance(said, wire.Failed):
            if not 0 <= said.index < len(batch.deliveries):
                raise ValueError(f"the worker reports a message that it does not have ({said.index})")
            batch.failures[said.index], batch.took[said.index] = said.failure, said.took
            return None
        marks = self._marks.batch(batch.slot, batch.end)
        self._batches.remove(batch)
        is_good = not batch.failures and marks == bytes([batch.code]) * batch.end
        if not is_good and not self._is_believable(batch, marks, batch.end):
            self._batches.insert(0, batch)
            raise ValueError("the worker's marks do not match its report")
        if self._durations is not None:
            self._note_durations(self._durations, batch, batch.end)
        return Ended(batch.deliveries[: batch.end], batch.failures)

    def _note_durations(self, durations: Durations, batch: _Batch, count: int) -> None:
        """Of the first messages of a batch."""
        failed = {n: batch.took[n] if failure.started else None for n, failure in batch.failures.items() if n < count}
        durations.add_batch(self._marks.times(batch.slot, count + 1), failed)

    def candidates(self, said: wire.Damaged) -> Sequence[str]:
        """The ids of the messages that may have done what the worker found."""
        batch = next((batch for batch in self._batches if batch.slot == said.slot), None)
        return [] if batch is None else [each.id for each in batch.deliveries[: batch.end][max(0, said.first) : said.last + 1]]

    def running(self) -> Sequence[Running]:
        """What runs at this moment, according to the marks."""
        what, since = self._marks.running_in_batch()
        for batch in self._batches:
            index = what - 1 - batch.slot * BATCH
            if 0 <= index < batch.end and self._marks.outcome(what - 1) == 0:
                return [Running(batch.deliveries[index], since)]
        return ()

    def take_back(self) -> Sequence[Delivery]:
        """What was not started and will not be. Only while the worker stands still."""
        what, _ = self._marks.running()
        taken: list[Delivery] = []
        for batch in self._batches:
            claimed = what - batch.slot * BATCH if 0 < what - batch.slot * BATCH <= batch.end else self._ended(batch)
            taken += batch.deliveries[claimed : batch.end]
            batch.end = claimed
            self._marks.end_batch_at(batch.slot, claimed)
        return taken

    def post_mortem(self) -> PostMortem:
        """What it leaves. Only once the worker is certainly gone, and everything it sent was read."""
        ended: list[Delivery] = []
        failures: dict[int, Failure] = {}
        unstarted: list[Delivery] = []
        running, doubtful = list(self.running()), []
        for batch in self._batches:
            if not self._is_sound(batch):
                doubtful += [Running(delivery, 0) for delivery in batch.deliveries[: batch.end]]
                continue
            over = self._ended(batch)
            if self._durations is not None and over:
                # Nobody knows when the last one ended if the worker died before it began another one.
                self._note_durations(self._durations, batch, over if running else over - 1)
            failures |= {len(ended) + index: failure for index, failure in batch.failures.items() if index < over}
            ended += batch.deliveries[:over]
            unstarted += [d for d in batch.deliveries[over : batch.end] if not running or d is not running[0].delivery]
        self._batches.clear()
        if doubtful:  # it overwrote its marks: none counts as ended, and each of them may have been running
            named = [one.delivery for one in doubtful]
            running = doubtful + [one for one in running if all(one.delivery is not delivery for delivery in named)]
        return PostMortem(
            Ended(ended, failures), running, unstarted, running[0] if running and not doubtful else None, not doubtful
        )

    def _is_sound(self, batch: _Batch) -> bool:
        """Whether the marks can be true: they run in order, so those that ended are all before the one that is being run."""
        what, _ = self._marks.running()
        places = {each.slot: what - each.slot * BATCH for each in self._batches if 0 < what - each.slot * BATCH <= BATCH}
        if what != IDLE and not places:
            return False
        over, marks = self._ended(batch), self._marks.batch(batch.slot, batch.end)
        place = places.get(batch.slot)
        is_in_place = over in (0, batch.end) if place is None else over in (place - 1, place)
        is_empty_behind = not any(marks[over:]) and self._marks.is_empty_behind(batch.slot, len(batch.deliveries))
        return is_in_place and is_empty_behind and self._is_believable(batch, marks, over)

    def _ended(self, batch: _Batch) -> int:
        """How many of a batch have ended: they run in order, so it is the stretch of marks before the first empty one."""
        marks = self._marks.batch(batch.slot, batch.end)
        return len(marks) if 0 not in marks else marks.index(0)

    @staticmethod
    def _is_believable(batch: _Batch, marks: bytes, count: int) -> bool:
        """Every mark is this batch's success code, or a failure that was reported before it."""
        return all(
            (mark == batch.code and index not in batch.failures) or (mark == FAILED and index in batch.failures)
            for index, mark in enumerate(marks[:count])
        )


LATELY = 20
"""How many messages that ended in a worker with lanes are remembered, in case it turns out to be damaged."""


@dataclass(slots=True)
class _Lane:
    delivery: Delivery
    code: int
    failure: Failure | None = None


class LaneAssignments:
    """For a worker that runs several messages at once, each in its lane. Has the methods of BatchAssignments."""

    def __init__(self, marks: Marks, send: Send, durations: Durations | None = None, *, shares_a_thread: bool) -> None:
        self._marks, self._send, self._durations, self._shares_a_thread = marks, send, durations, shares_a_thread
        self._lanes: dict[int, _Lane] = {}
        self._lately: deque[str] = deque(maxlen=LATELY)

    def free(self) -> int:
        return self._marks.lanes - len(self._lanes)

    def held(self) -> int:
        return len(self._lanes)

    def weight(self) -> int:
        return weight(lane.delivery for lane in self._lanes.values())

    def give(self, deliveries: Sequence[Delivery]) -> wire.Sent:
        free = [lane for lane in range(self._marks.lanes) if lane not in self._lanes][: len(deliveries)]
        codes = [_new_code() for _ in free]  # each its own: one that writes over all marks knows no other's
        for lane in free:
            self._marks.prepare_lane(lane)
        sent = self._send(wire.RunLanes(free, codes, [_unreceipted(delivery) for delivery in deliveries]))
        if sent is wire.Sent.YES:
            given = zip(free, codes, deliveries, strict=True)
            self._lanes |= {lane: _Lane(delivery, code) for lane, code, delivery in given}
        return sent

    def heard(self, said: wire.Ended | wire.Failed) -> Ended | None:
        if isinstance(said, wire.Failed):
            self._lane(said.index).failure = said.failure
            return None
        over = [self._lane(number) for number in said.lanes]
        if not all(self._is_over(number) for number in said.lanes):
            raise ValueError("the worker's marks do not match its report")
        for number in said.lanes:
            self._lately.append(self._lanes.pop(number).delivery.id)
        if self._durations is not None:
            for each in over:
                if each.failure is None or each.failure.started:
                    self._durations.add(said.took)
        return _ended(over)

    def candidates(self, said: wire.Damaged) -> Sequence[str]:
        return [*self._lately, *(lane.delivery.id for lane in self._lanes.values())]

    def running(self) -> Sequence[Running]:
        return [running for lane in self._lanes if (running := self._running(lane)) is not None]

    def take_back(self) -> Sequence[Delivery]:
        """Every message starts as soon as it is handed over, so there is nothing to take back."""
        return ()

    def post_mortem(self) -> PostMortem:
        over, unstarted, sound = [], [], True
        running = list(self.running())
        for number, lane in self._lanes.items():
            what, _ = self._marks.running(number)
            if self._is_over(number):
                over.append(lane)
            elif what == IDLE and not self._marks.outcome(number):
                unstarted.append(lane.delivery)
            elif all(one.lane != number for one in running):
                # These are not marks of this lane's: whether it ended is not known, but it may have been running.
                sound = False
                running.append(Running(lane.delivery, 0, number))
        self._lanes.clear()
        return PostMortem(_ended(over), running, unstarted, self._culprit(running) if sound else None, sound)

    def _is_over(self, number: int) -> bool:
        """The lane is free again, and marked with its own success code, or as a failure that was reported before."""
        lane, (what, since) = self._lanes[number], self._marks.running(number)
        has_ended = what == IDLE and since != 0  # what never began cannot have ended, whatever was written over its mark
        return has_ended and self._marks.outcome(number) == (lane.code if lane.failure is None else FAILED)

    def _culprit(self, running: Sequence[Running]) -> Running | None:
        if self._shares_a_thread:
            step = self._marks.stepping()
            return next((one for one in running if one.lane == step), None)
        return running[0] if len(running) == 1 else None

    def _lane(self, number: int) -> _Lane:
        if number not in self._lanes:
            raise ValueError(f"the worker reports a lane that it does not have ({number})")
        return self._lanes[number]

    def _running(self, number: int) -> Running | None:
        what, since = self._marks.running(number)
        is_running = what == 1 and not self._marks.outcome(number)
        return Running(self._lanes[number].delivery, since, number) if is_running else None


Assignments = BatchAssignments | LaneAssignments


def _ended(lanes: Sequence[_Lane]) -> Ended:
    failures = {index: lane.failure for index, lane in enumerate(lanes) if lane.failure is not None}
    return Ended([lane.delivery for lane in lanes], failures)


def _unreceipted(delivery: Delivery) -> Delivery:
    """As a worker gets it: without the broker's receipt, which may be anything. A plain tuple is data that a handler may need."""
    d, receipt = delivery, delivery.receipt if type(delivery.receipt) is tuple else 0
    return Delivery(receipt, d.source, d.id, d.body, d.key, d.headers, d.counters, d.is_tombstone, d.native)
