"""How are the messages of one source fetched from its two topics, and settled?"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.commit_metadata import Start
from unpoison.brokers.kafka.committing import Commits
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import ID, Record, due_at
from unpoison.brokers.kafka.group_member import GroupMember
from unpoison.brokers.kafka.partition import SOURCE_PAUSED, Assignment, Partition
from unpoison.brokers.kafka.reading import SourcePause
from unpoison.brokers.kafka.topology import TopicWatch
from unpoison.brokers.kafka.waiting import RetryWaiting, Waiting
from unpoison.model.events import fields
from unpoison.model.message import Delivery
from unpoison.port import serialization
from unpoison.port.reading import Unreadable, read_all, read_one, unreadable
from unpoison.port.takeovers import CameBack, tell

log = logging.getLogger("unpoison")

READ_WITHIN, LOOK_AGAIN = 15.0, 0.1
"""Seconds that a caller without a bell waits, at most, for messages that are in the topics already, and between two looks."""


class Receipt(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How a message is found again when it is settled."""

    partition: Partition
    offset: int
    record: Record


class Subscription:
    """The messages of one source: new ones in its own topic, and retries in the group's retry topic."""

    def __init__(self, source: str, connection: Connection, ring: Callable[[], None], *, has_bell: bool) -> None:
        self.source, self._connection, self._has_bell = source, connection, has_bell
        self.names = names = connection.names(source)
        self.watch = TopicWatch(connection.queries, names.topics)
        self._pause = SourcePause()
        main, retry = (
            Commits(Assignment(topic, ring), self._pause, starts_slowly=has_bell, on_return=partial(tell, source))
            for topic in (names.topic, names.retry)
        )
        settings = connection.settings.member(names.group, names.topic)
        self.main = GroupMember(connection, names, settings, main, Waiting(), self.watch, on_recreated=self._warn_recreated)
        self.retries = RetryWaiting(connection, names, retry.assignment)
        settings = connection.settings.member(names.retry_group, names.retry)
        self.retry = GroupMember(connection, names, settings, retry, self.retries, self.watch, away_topic=names.states)
        self._flip = 0
        self._cut_off: set[tuple[Partition, int]] = set()
        self._moved_back = CameBack(tell=serialization.tell)
        _ = connection.producer  # connected before it is needed

    def _warn_recreated(self) -> None:
        text = (
            "Source %r: topic %r was deleted and created again. It is consumed from its first message on; what was committed for "
            "the old topic does not count."
        )
        log.warning(text, self.source, self.names.topic, extra=fields("topic-made-again", source=self.source))

    @property
    def members(self) -> tuple[GroupMember, GroupMember]:
        return self.main, self.retry

    def member(self, partition: Partition) -> GroupMember:
        return self.main if partition.topic == self.main.topic else self.retry

    def begin(self, *, fetching: bool) -> bool:
        """Join the groups. False while they have not taken us in."""
        for member in self.members:
            member.begin(fetching=fetching)
            member.check()
        if not self._has_bell:
            deadline = time.monotonic() + READ_WITHIN
            for member in self.members:
                self._wait_until_known(member, deadline)
        return all(member.assignment.is_joined for member in self.members)

    def pause(self) -> None:
        """Read nothing more. What was read and not fetched stays here as if it had never been touched, which the server has
        confirmed when this returns, unless it is silent. The partitions stay ours: a group without members would be forgotten
        after a while, with all that it has committed."""
        if self._pause.is_on:
            return
        self._pause.begin()
        for member in self.members:
            member.begin(fetching=False)
            member.rest()
        for member in self.members:
            member.commits.wait(anyway=True)

    def resume(self) -> None:
        if self._pause.is_on:
            self._pause.end()
            for member in self.members:
                member.begin(fetching=True)

    def fetch(self, limit: int) -> list[Delivery]:
        if not (self._ask(limit) if self._has_bell else self._read_to_the_end(limit)):
            return []
        self._flip ^= 1
        again = self.retry.take((limit + self._flip) // 2)
        taken = self.main.take(limit - _count(again))
        if (left := limit - _count(again) - _count(taken)) > 0:
            again += self.retry.take(left)
        in_order = sorted(
            ((partition, record) for partition, records in again for record in records), key=lambda each: due_at(each[1])
        )
        found = [self._read(partition, record) for partition, record in in_order]
        for partition, records in taken:
            together, one = partial(self._deliveries, partition), partial(self._delivery, partition)
            found += read_all(records, together, one, partial(self._unreadable, partition))
        self._moved_back.tell_due()
        return found

    def _ask(self, limit: int) -> bool:
        """So many messages are wanted. While the source is paused, no more than that are read or marked for it."""
        is_joined = self.begin(fetching=True)
        if self._pause.is_on:
            with self.main.assignment.changed, self.retry.assignment.changed:
                ours = [each for member in self.members for each in member.assignment.partitions.values()]
                coming = sum(len(each.ready) + len(each.marking) for each in ours)
                self._pause.ask(max(0, limit - coming), is_held=any(each.fresh for each in ours))
        return is_joined

    def _read_to_the_end(self, limit: int) -> bool:
        """Join, and wait until the messages that are in the topics already were read. False if we did not get in."""
        for member in self.members:
            member.is_waited_for = True
        try:
            if not self._ask(limit):
                return False
            deadline = time.monotonic() + READ_WITHIN
            for member in self.members:
                self._wait_until_read(member, limit, deadline)
        finally:
            for member in self.members:
                member.begin(fetching=True)
                member.is_waited_for = False
        return True

    def _deliveries(self, partition: Partition, records: Sequence[Record]) -> list[Delivery]:
        """Most messages have an id and nothing else: they are read here, without a call for each."""
        if partition.losses or partition.starts:
            return [self._delivery(partition, record) for record in records]
        source, found = self.source, []
        for record in records:
            try:
                known = record.headers() or ()
            except UnicodeDecodeError:
                known = ()
            value = record.value()
            if len(known) == 1 and known[0][0] == ID and (id_ := known[0][1]) and record.key() is None and value is not None:
                found.append(Delivery(Receipt(partition, record.offset(), record), source, id_.decode(), value))
            else:
                found.append(self._delivery(partition, record))
        return found

    def _read(self, partition: Partition, record: Record) -> Delivery:
        return read_one(record, partial(self._delivery, partition), partial(self._unreadable, partition))

    def _unreadable(self, partition: Partition, record: Record, error: Exception) -> Unreadable:
        native = {"key": record.key(), "headers": list(envelope.headers_of(record))}
        place = f"{record.topic()}/{record.partition()}/{record.offset()}"
        return unreadable(Receipt(partition, record.offset(), record), self.source, place, record.value(), native, error)

    def _delivery(self, partition: Partition, record: Record) -> Delivery:
        seen, value = envelope.read_envelope(record, self.names.topic), record.value()
        if seen.is_moved_back:
            self._moved_back.note(self.source)
        counters = partition.counters_of(record, seen.counters) if partition.losses or partition.starts else seen.counters
        receipt = Receipt(partition, record.offset(), record)
        return Delivery(receipt, self.source, seen.id, value or b"", seen.key, seen.headers, counters, value is None)

    def _wait_until_known(self, member: GroupMember, deadline: float) -> None:
        """Until the group has taken us in. If no other member owns a partition of the topic, ours are still to come."""
        here = member.assignment

        def is_known() -> bool:
            return here.is_joined and all(partition.is_known for partition in here.partitions.values())

        with here.changed:
            here.changed.wait_for(is_known, deadline - time.monotonic())
        topics_of_others = self._connection.queries.topics_of_others
        while not here.partitions and time.monotonic() < deadline and member.topic not in topics_of_others(member.group):
            with here.changed:
                here.changed.wait_for(lambda: bool(here.partitions) and is_known(), 0.05)

    def _wait_until_read(self, member: GroupMember, limit: int, deadline: float) -> None:
        """A caller that is not rung when messages come gets those that are there when it asks."""
        while not self._is_read(member, limit, deadline) and time.monotonic() < deadline:
            self._wait_until_known(member, deadline)  # the group was rebalanced: partitions went, and come again

    def _is_read(self, member: GroupMember, limit: int, deadline: float) -> bool:
        """False if a rebalance changed the partitions meanwhile."""
        here = member.assignment
        ours = dict(here.partitions)
        ends = self._connection.queries.ends((member.topic, number) for number in ours)

        def is_read() -> bool:
            if here.partitions != ours or sum(len(partition.ready) for partition in ours.values()) >= limit:
                return True
            return all(
                self._is_read_to(member, partition, ends.get((member.topic, partition.number), 0)) for partition in ours.values()
            ) and (member.waiting.sleep() > 0)

        with here.changed:
            # The other member may take what was to start here, and does not tell.
            while not here.changed.wait_for(is_read, LOOK_AGAIN) and time.monotonic() < deadline:
                pass
            return here.partitions == ours

    def _is_read_to(self, member: GroupMember, partition: Partition, end: int) -> bool:
        """Whether a partition was read up to this end, or is not read for now, and nothing more of it is about to start."""
        if not partition.is_known or partition.marking:
            return False
        if self._pause.stops_marking and not member.waiting.is_always_read(partition):
            return True
        is_read = partition.next >= end or bool(partition.pauses - {SOURCE_PAUSED})
        may_be_stuck = bool(partition.running) and not self._pause.is_on  # behind too many gaps: see `Partition.position`
        return is_read and (self._pause.stops_marking or not partition.fresh or may_be_stuck)

    def has_suspect(self) -> bool:
        if not self.begin(fetching=False):
            return False
        if not self._has_bell:
            self._wait_until_read(self.retry, 1, time.monotonic() + READ_WITHIN)
        with self.retry.assignment.changed:
            return self.retries.suspect() is not None

    def take_suspect(self, by: str) -> Delivery | None:
        """Its start is on record, confirmed, when this returns."""
        if not self.has_suspect():
            return None
        with self.retry.assignment.changed:
            found = self.retries.suspect()
            if found is None:
                return None
            partition, record = found
            delivery = self._read(partition, record)
            partition.start_alone(record.offset(), Start(by[:80], round(time.time(), 3)))
        try:
            self.retry.commits.require()
        except BaseException:
            with self.retry.assignment.changed:
                if record.offset() in partition.running:
                    partition.put_back(record.offset())
            raise
        return delivery if self.is_held(delivery.receipt) else None

    def are_held(self, places: "OffsetsByPartition") -> bool:
        """Whether all of these run, in partitions that are still ours."""
        return all(
            not partition.is_lost and all(map(partition.running.__contains__, offsets)) for partition, offsets in places.items()
        )

    def is_held(self, receipt: Receipt) -> bool:
        partition, offset = receipt.partition, receipt.offset
        return (offset in partition.running and not partition.is_lost) or offset in partition.handed_over

    def finish(self, places: "OffsetsByPartition") -> list[str]:
        """These are done, or stored elsewhere. If some were handed over, none is finished yet, and their references are returned:
        the group must be told first."""
        with self.main.assignment.changed, self.retry.assignment.changed:
            refs = [
                partition.handed_over[offset][0]
                for partition, offsets in places.items()
                if partition.handed_over
                for offset in offsets
                if offset in partition.handed_over
            ]
            if not refs:
                for partition, offsets in places.items():
                    partition.finish_all(offsets)
                    self.member(partition).assignment.changed.notify_all()
        return refs

    def told(self, places: "OffsetsByPartition", refs: Collection[str]) -> None:
        """The group knows that those with these references were settled."""
        for partition, offsets in places.items():
            assignment = self.member(partition).assignment
            with assignment.changed:
                for offset in offsets:
                    if offset in partition.handed_over and partition.handed_over[offset][0] in refs:
                        del partition.handed_over[offset]
                if not partition.handed_over:
                    assignment.handed_over.discard(partition)

    def cut_off(self) -> None:
        """Everything that ran here has been ended. It starts again: here, or where its partition has gone."""
        for member in self.members:
            with member.assignment.changed:
                for partition in member.assignment.partitions.values():
                    partition.cut_off()
                self._cut_off |= {(each, offset) for each in member.assignment.handed_over for offset in each.handed_over}

    def not_resumed(self) -> list[Delivery]:
        """Messages that were cut off after their partition had gone elsewhere: the group waits for us to settle them."""
        self._cut_off = {(partition, offset) for partition, offset in self._cut_off if offset in partition.handed_over}
        return [self._read(partition, partition.handed_over[offset][1]) for partition, offset in self._cut_off]

    def put_back(self, places: "OffsetsByPartition") -> None:
        """These were not started. Messages that were read ahead are left to others too, until the next fetch."""
        for partition, offsets in places.items():
            with self.member(partition).assignment.changed:
                for offset in offsets:
                    if offset in partition.running:
                        partition.put_back(offset)
        for member in self.members:
            with member.assignment.changed:
                member.rest()
                member.assignment.changed.notify_all()

    def lost(self) -> bool:
        """Whether running messages were lost to another consumer since the last call."""
        found = any(member.assignment.lost_something for member in self.members)
        for member in self.members:
            member.assignment.lost_something = False
        return found

    def close(self) -> None:
        for member in self.members:
            member.close()


OffsetsByPartition = Mapping[Partition, Sequence[int]]
"""Offsets of messages, by partition."""


def by_partition(deliveries: Iterable[Delivery]) -> OffsetsByPartition:
    found: dict[Partition, list[int]] = {}
    last, offsets = None, list[int]()
    for delivery in deliveries:
        receipt = delivery.receipt
        if receipt.partition is not last:
            last = receipt.partition
            offsets = found.setdefault(last, [])
        offsets.append(receipt.offset)
    return found


def _count(taken: Sequence[tuple[Partition, Sequence[Record]]]) -> int:
    return sum(len(records) for _, records in taken)
