"""What does a message wait for before it may start?

A message of the source's own topic waits for nothing. In the group's retry topic each partition has a purpose: messages that are
not due yet, messages that must run alone, and messages that still run in a consumer whose partition has gone elsewhere.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection, Reader
from unpoison.brokers.kafka.envelope import CANCELLED, HOLDER, REF, NewRecord, Record, claim_of, due_at, header, settled_note
from unpoison.brokers.kafka.names import AGAIN, HELD, REPLAYS, SUSPECTS, Names
from unpoison.brokers.kafka.partition import MUCH_RESTS, Assignment, Partition
from unpoison.errors import BrokerUnavailable

LOOK_FOR_HOLDERS = 0.5
WAIT_AFTER_TROUBLE = 0.1
FAR = 3600.0
MAX_RESTING, MAX_RESTING_BYTES = 1_000, 4 * 1024 * 1024
"""What is read of one partition before it is due."""

Pause = Callable[[Partition, str, bool], None]
"""Stops reading a partition for a reason, or resumes it if there is no other reason."""


class Waiting:
    """What the messages of a topic wait for: in the source's own topic, nothing."""

    def arrive(self, partition: Partition, records: Sequence[Record]) -> None:
        """These records of a partition were read. First it must be known what the last owner of the partition has done."""
        if not partition.is_known:
            partition.early += records
            return
        new = partition.arrive(records)
        partition.size += sum(map(len, new))
        self.arrange(partition, new)

    def arrange(self, partition: Partition, records: Sequence[Record]) -> None:
        """Put records that are to be done where they wait."""
        partition.fresh.extend(records)

    def is_always_read(self, partition: Partition) -> bool:
        """Whether it is read also while the source is paused."""
        return False

    def sleep(self) -> float:
        """Seconds until the next one is due."""
        return FAR

    def tick(self, pause: Pause) -> None:
        """Now and then, in the keeper: look for messages that need not wait any longer."""

    def close(self) -> None:
        """In the keeper, when it ends: no other thread may close what it uses."""


class Cancellations:
    """The cancellations that one consumer of the retry topic knows of. It looks for those that the last owner had read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reader: Reader | None = None
        self._at: dict[str, int] = {}
        self.doubtful: dict[tuple[Partition, int], Record] = {}
        """Copies that may have been cancelled before this consumer came."""

    def drop_cancelled(self, partition: Partition, records: Sequence[Record]) -> list[Record]:
        """The records that count. Cancellations and cancelled copies are done; doubtful copies rest."""
        found: list[Record] = []
        for record in records:
            offset, (nonce, end), of = record.offset(), claim_of(record), header(record, CANCELLED)
            if of:  # an empty one is another program's header
                self._at.setdefault(of, offset)
            if of or self._is_cancelled(record):
                partition.rest(record)
                partition.finish(offset)
            elif nonce and end < min(offset, partition.known_top):
                partition.rest(record)
                self.doubtful[partition, offset] = record
            else:
                found.append(record)
        return found

    def look(self) -> bool:
        """Read the cancellations that came before this consumer. False if that failed and must be tried again."""
        stretches: dict[PartitionKey, tuple[int, int]] = {}
        for (partition, _), record in self.doubtful.items():
            if not (partition.is_lost or partition.is_deleted):
                place, end = (partition.topic, partition.number), claim_of(record)[1]
                stretches[place] = (min(end, stretches.get(place, (end, 0))[0]), partition.known_top)
        self._reader = self._reader or Reader(self._connection)
        try:
            for place, (begin, end) in self._connection.queries.bounds(stretches).items():
                stretches[place] = (max(begin, stretches[place][0]), min(end, stretches[place][1]))
            for record in self._reader.read(stretches):
                if of := header(record, CANCELLED):
                    self._at[of] = min(record.offset(), self._at.get(of, record.offset()))
        except BrokerUnavailable:
            return False
        return True

    def cleared(self) -> list[tuple[Partition, int]]:
        """After a look: the doubtful copies that count."""
        found = []
        for (partition, offset), record in self.doubtful.items():
            if self._is_cancelled(record):
                partition.finish(offset)
            elif not (partition.is_lost or partition.is_deleted):
                found.append((partition, offset))
        self.doubtful = {}
        return found

    def _is_cancelled(self, record: Record) -> bool:
        nonce = claim_of(record)[0]
        return bool(nonce) and self._at.get(nonce, record.offset()) < record.offset()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Held(NamedTuple):
    """A copy of a message that still runs elsewhere, and the consumer that runs it."""

    partition: Partition
    offset: int
    holder: str


class RetryWaiting(Waiting):
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

    def is_always_read(self, partition: Partition) -> bool:
        """No fetch hands out what is there: suspects are looked for, and what others hold is noted and forgotten."""
        return partition.number in (SUSPECTS, HELD)

    def _arrange_held(self, partition: Partition, record: Record) -> None:
        ref, holder = header(record, REF) or "", header(record, HOLDER)
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
            if much or little:
                pause(partition, MUCH_RESTS, much)

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
                losses = each.partition.losses
                if each.offset in each.partition.resting:
                    losses[each.offset] = min(2, losses.get(each.offset, 0) + 1)
                    each.partition.wake_up(each.offset)
                del self._held[ref]

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


def hand_over(connection: Connection, names: Names, assignment: Assignment, partition: Partition) -> None:
    """Keep the group from starting messages that run here while their partition goes elsewhere.

    A copy of each, with our name, waits in the retry topic: no other consumer starts it while this one lives.
    """
    with assignment.changed:
        running = partition.running.items()
        copies = {offset: held_record(names, partition, record, connection.name) for offset, record in running}
    refused = connection.store([copy for _, copy in copies.values()])
    settled: list[str] = []
    with assignment.changed:
        for number, (offset, (ref, _)) in enumerate(copies.items()):
            if offset not in partition.running:
                settled.append(ref)  # also of a copy that was refused: one that is not confirmed in time may be stored later
            elif number not in refused:
                partition.handed_over[offset] = (ref, partition.running[offset])
                partition.finish(offset)
                assignment.handed_over.add(partition)
    connection.store([settled_note(names, ref) for ref in settled])


def held_record(names: Names, partition: Partition, record: Record, holder: str) -> tuple[str, NewRecord]:
    """The copy of a message that runs at `holder` while its partition goes elsewhere, and the reference to it."""
    ref = f"{partition.topic}/{partition.number}/{record.offset()}#{holder}"
    seen = envelope.read_envelope_safely(record, names.topic)
    headers = envelope.copy_headers(record, seen, partition.counters_of(record, seen.counters), {HOLDER: holder, REF: ref})
    return ref, NewRecord(names.retry, record.value(), record.key(), headers, HELD)
