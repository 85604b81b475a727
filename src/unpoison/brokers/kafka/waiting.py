"""What does a message wait for before it may start?

A message of the source's own topic waits for nothing. In the group's retry topic each partition has a purpose: messages that are
not due yet, messages that must run alone, and messages that still run in a consumer whose partition has gone elsewhere.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from unpoison.brokers.kafka import envelope, publishing
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import HOLDER, REF, Record, due_at
from unpoison.brokers.kafka.names import AGAIN, HELD, REPLAYS, SUSPECTS, Names
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.brokers.kafka.replays import Cancellations
from unpoison.errors import BrokerUnavailable

LOOK_FOR_HOLDERS = 0.5
WAIT_AFTER_TROUBLE = 0.1
FAR = 3600.0
MAX_RESTING, MAX_RESTING_BYTES = 1_000, 4 * 1024 * 1024
"""What is read of one partition before it is due."""

Pause = Callable[[Partition, bool], None]
"""Stops or resumes reading a partition."""


class Waiting(Protocol):
    """What the messages of a topic wait for."""

    def arrange(self, partition: Partition, records: Sequence[Record]) -> None:
        """Put records that were read where they wait."""

    def sleep(self) -> float:
        """Seconds until the next one is due."""

    def tick(self, pause: Pause) -> None:
        """Now and then, in the keeper: look for messages that need not wait any longer."""

    def close(self) -> None:
        """In the keeper, when it ends: no other thread may close what it uses."""


class NoWaiting:
    """For the source's own topic."""

    def arrange(self, partition: Partition, records: Sequence[Record]) -> None:
        partition.fresh.extend(records)

    def sleep(self) -> float:
        return FAR

    def tick(self, pause: Pause) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing is open here."""


class Held(NamedTuple):
    """A copy of a message that still runs elsewhere, and the consumer that runs it."""

    partition: Partition
    offset: int
    holder: str


class RetryWaiting:
    """For the group's retry topic."""

    def __init__(self, connection: Connection, names: Names, assignment: Assignment) -> None:
        self._connection, self._names, self._assignment = connection, names, assignment
        self._due: list[tuple[float, int, Partition, int]] = []
        self._order = itertools.count()
        self._held: dict[str, Held] = {}
        self._absent: dict[str, int] = {}
        self._looked_at = 0.0
        self._cancellations = Cancellations(connection)

    def next_due(self) -> float | None:
        """When the first of those is due that were read and wait here."""
        with self._assignment.changed:
            return self._due[0][0] if self._due else None

    def arrange(self, partition: Partition, records: Sequence[Record]) -> None:
        if partition.number in (REPLAYS, SUSPECTS):
            records = self._cancellations.drop_cancelled(partition, records)
        if partition.number in (AGAIN, REPLAYS):
            partition.fresh.extend(records)
            return
        for record in records:
            partition.rest(record)
            if partition.number == HELD:
                self._arrange_held(partition, record)
            elif partition.number != SUSPECTS:
                heapq.heappush(self._due, (due_at(record), next(self._order), partition, record.offset()))

    def _arrange_held(self, partition: Partition, record: Record) -> None:
        ref, holder = envelope.header(record, REF) or "", envelope.header(record, HOLDER)
        known = self._held.get(ref)
        if holder is None:  # the holder's note that it has settled the message
            partition.finish(record.offset())
            if known is not None:
                partition.finish(self._held.pop(ref).offset)
        elif known is not None and known.partition is partition:
            partition.finish(record.offset())  # stored twice, since the server confirmed it late
        else:
            self._held[ref] = Held(partition, record.offset(), holder)

    def sleep(self) -> float:
        with self._assignment.changed:
            if self._cancellations.doubtful:
                return 0.0
            return max(0.0, self._due[0][0] - self._connection.now()) if self._due else FAR

    def tick(self, pause: Pause) -> None:
        if self._due:
            self._connection.learn_the_time(self._names.states)
        with self._assignment.changed:
            now = self._connection.now()
            while self._due and self._due[0][0] <= now:
                _, _, partition, offset = heapq.heappop(self._due)
                if not partition.is_lost:
                    partition.wake_up(offset)
            held = self._held.items()
            self._held = {ref: each for ref, each in held if not (each.partition.is_lost or each.partition.is_deleted)}
        self._pace(pause)
        if self._cancellations.doubtful:
            self._clear_doubts()
        if self._held and time.monotonic() - self._looked_at > LOOK_FOR_HOLDERS:
            self._looked_at = time.monotonic()
            self._look_for_holders()

    def _clear_doubts(self) -> None:
        """Learn which replays were cancelled before this consumer came."""
        if not self._cancellations.look():
            time.sleep(WAIT_AFTER_TROUBLE)
            return
        with self._assignment.changed:
            for partition, offset in self._cancellations.cleared():
                if partition.number == REPLAYS:
                    partition.wake_up(offset)
            self._assignment.changed.notify_all()

    def _pace(self, pause: Pause) -> None:
        """Read no more of a partition while many of its messages wait: an hour's delays would fill the memory."""
        for partition in list(self._assignment.partitions.values()):
            count, size = len(partition.resting), partition.resting_size
            much = count > MAX_RESTING or size > MAX_RESTING_BYTES
            little = count <= MAX_RESTING // 2 and size <= MAX_RESTING_BYTES // 2
            if (much and not partition.is_paused) or (little and partition.is_paused):
                pause(partition, much)

    def _look_for_holders(self) -> None:
        """Start what a holder ran that is gone. Gone means absent from the group twice in a row."""
        try:
            present = self._connection.queries.members(self._names.retry_group)
        except BrokerUnavailable:
            return
        with self._assignment.changed:
            missing = {each.holder for each in self._held.values()} - present - {self._connection.name}
            self._absent = {holder: self._absent.get(holder, 0) + 1 for holder in missing}
            gone = {ref: each for ref, each in self._held.items() if self._absent.get(each.holder, 0) >= 2}
            for ref, each in gone.items():
                self._free(each.partition, each.offset)
                del self._held[ref]

    def _free(self, partition: Partition, offset: int) -> None:
        if offset in partition.resting:
            partition.losses[offset] = min(2, partition.losses.get(offset, 0) + 1)
            partition.wake_up(offset)

    def suspect(self) -> tuple[Partition, Record] | None:
        """The first message that must run alone, if this consumer owns their partition."""
        partition = self._assignment.partitions.get(SUSPECTS)
        if partition is None or not partition.is_known:
            return None
        doubtful = self._cancellations.doubtful
        first = min((offset for offset in partition.resting if (partition, offset) not in doubtful), default=None)
        return None if first is None else (partition, partition.resting[first])

    def close(self) -> None:
        self._cancellations.close()


class HandOver:
    """Keeps the group from starting messages that run here while their partition goes elsewhere.

    A copy of each, with the name of this consumer, waits in the retry topic: no other consumer starts it while this one lives.
    """

    def __init__(self, connection: Connection, names: Names, assignment: Assignment) -> None:
        self._connection, self._names, self._assignment = connection, names, assignment

    def __call__(self, partition: Partition) -> None:
        with self._assignment.changed:
            moved = {
                offset: publishing.held_record(self._names, partition, record, self._connection.name)
                for offset, record in partition.running.items()
            }
        refused = self._connection.store([copy for _, copy in moved.values()])
        settled: list[str] = []
        with self._assignment.changed:
            for number, (offset, (ref, _)) in enumerate(moved.items()):
                if number in refused:
                    continue
                if offset not in partition.running:
                    settled.append(ref)
                    continue
                partition.handed_over[offset] = (ref, partition.running[offset])
                partition.finish(offset)
        self._connection.store([publishing.settled_note(self._names, ref) for ref in settled])
