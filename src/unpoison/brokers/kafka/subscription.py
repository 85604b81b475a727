"""How are the messages of one source fetched, and settled, over its two topics?"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

import msgspec

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.commit_metadata import Start
from unpoison.brokers.kafka.connection import Session
from unpoison.brokers.kafka.envelope import ID, Record, due
from unpoison.brokers.kafka.group_member import Line
from unpoison.brokers.kafka.partition import Part
from unpoison.brokers.kafka.publishing import counters_of
from unpoison.brokers.kafka.topology import TopicWatch
from unpoison.brokers.kafka.waiting import Retries, Straight
from unpoison.model.message import Delivery
from unpoison.port import serialization
from unpoison.port.reading import Unreadable, read_all, read_one, unreadable
from unpoison.port.takeovers import CameBack, tell

log = logging.getLogger("unpoison")

_receipt = attrgetter("receipt")

READ_WITHIN = 15.0
"""Seconds that somebody who has no bell waits, at most, for what is in the topics already."""


class Receipt(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How a message is found again when it is settled."""

    part: Part
    offset: int
    record: Record


class Source:
    def __init__(self, source: str, session: Session, ring: Callable[[], None], *, has_bell: bool) -> None:
        self.source, self._session, self._has_bell = source, session, has_bell
        self.names = names = session.names(source)
        self.main = Line(session.consuming(names.group, names.topic), names.topic, None, ring)
        self.retry = Line(session.consuming(names.retry_group, names.retry), names.retry, names.states, ring)
        self.watch = self.main.watch = self.retry.watch = TopicWatch(session, names.topics)
        self.main.on_made_again = self._tell_made_again
        self.main.shelf = Straight(session, names, self.main)
        self.retries = self.retry.shelf = Retries(session, names, self.retry)
        self.main.on_return = self.retry.on_return = partial(tell, source)
        self.main.starts_slowly = self.retry.starts_slowly = has_bell
        self._flip = 0
        self._moved_back = CameBack(tell=serialization.tell)
        _ = session.producer  # connected before it is needed

    def _tell_made_again(self) -> None:
        text = (
            "Source %r: somebody has deleted topic %r and made it again. It is consumed from its first message on: what was "
            "committed for the old one does not count."
        )
        log.warning(text, self.source, self.names.topic, extra={"event": "topic-made-again", "source": self.source})

    @property
    def lines(self) -> tuple[Line, Line]:
        return self.main, self.retry

    def line(self, part: Part) -> Line:
        return self.main if part.topic == self.main.topic else self.retry

    def begin(self, *, fetching: bool) -> bool:
        """Be there. False while the groups have not taken us in."""
        for line in self.lines:
            line.begin(fetching=fetching)
            line.check()
        if not self._has_bell:
            deadline = time.monotonic() + READ_WITHIN
            for line in self.lines:
                self._wait_until_known(line, deadline)
        return all(line.is_joined for line in self.lines)

    def fetch(self, limit: int) -> list[Delivery]:
        if not (self.begin(fetching=True) if self._has_bell else self._read_to_the_end(limit)):
            return []
        self._flip ^= 1
        again = self.retry.take((limit + self._flip) // 2)
        taken = self.main.take(limit - _count(again))
        if (left := limit - _count(again) - _count(taken)) > 0:
            again += self.retry.take(left)
        in_order = sorted(((part, record) for part, records in again for record in records), key=lambda each: due(each[1]))
        found = [self._read(part, record) for part, record in in_order]
        for part, records in taken:
            together, one = partial(self._deliveries, part), partial(self._delivery, part)
            found += read_all(records, together, one, partial(self._unreadable, part))
        self._moved_back.tell_due()
        return found

    def _read_to_the_end(self, limit: int) -> bool:
        """Be there, until what is in the topics already was read. False if that took too long."""
        for line in self.lines:
            line.is_waited_for = True
        try:
            if not self.begin(fetching=True):
                return False
            deadline = time.monotonic() + READ_WITHIN
            for line in self.lines:
                self._wait_until_read(line, limit, deadline)
        finally:
            for line in self.lines:
                line.begin(fetching=True)
                line.is_waited_for = False
        return True

    def _deliveries(self, part: Part, records: Sequence[Record]) -> list[Delivery]:
        """Most messages have an id and nothing else: these are read here, without a call for each."""
        if part.levels or part.starts:
            return [self._delivery(part, record) for record in records]
        source, found = self.source, []
        for record in records:
            known, value = envelope.pairs(record), record.value()
            if len(known) == 1 and known[0][0] == ID and (id_ := known[0][1]) and record.key() is None and value is not None:
                found.append(Delivery(Receipt(part, record.offset(), record), source, id_.decode(), value))
            else:
                found.append(self._delivery(part, record))
        return found

    def _read(self, part: Part, record: Record) -> Delivery:
        return read_one(record, partial(self._delivery, part), partial(self._unreadable, part))

    def _unreadable(self, part: Part, record: Record, error: Exception) -> Unreadable:
        native = {"key": record.key(), "headers": list(envelope.pairs(record))}
        place = f"{record.topic()}/{record.partition()}/{record.offset()}"
        return unreadable(Receipt(part, record.offset(), record), self.source, place, record.value(), native, error)

    def _delivery(self, part: Part, record: Record) -> Delivery:
        seen, value = envelope.look(record, self.names.topic), record.value()
        if seen.is_moved_back:
            self._moved_back.note(self.source)
        counters = counters_of(part, record, seen.counters) if part.levels or part.starts else seen.counters
        receipt = Receipt(part, record.offset(), record)
        return Delivery(receipt, self.source, seen.id, value or b"", seen.key, seen.headers, counters, value is None)

    def _wait_until_known(self, line: Line, deadline: float) -> None:
        """Until the group has taken us in. If nobody else there has a partition of the topic, ours are still to come."""

        def is_known() -> bool:
            return line.is_joined and all(part.is_known for part in line.parts.values())

        with line.changed:
            line.changed.wait_for(is_known, deadline - time.monotonic())
        while not line.parts and time.monotonic() < deadline and line.topic not in self._session.shared_out(line.group):
            with line.changed:
                line.changed.wait_for(lambda: bool(line.parts) and is_known(), 0.05)

    def _wait_until_read(self, line: Line, limit: int, deadline: float) -> None:
        """Whoever is not told when something comes is given what is there when it asks."""
        while not self._is_read(line, limit, deadline) and time.monotonic() < deadline:
            self._wait_until_known(
                line, deadline
            )  # partitions went and come again: a group that has just begun is shared out anew

    def _is_read(self, line: Line, limit: int, deadline: float) -> bool:
        """False if the partitions were others in the end than in the beginning."""
        ours = dict(line.parts)
        ends = self._session.ends((line.topic, number) for number in ours)

        def is_read() -> bool:
            if line.parts != ours or sum(len(part.ready) for part in ours.values()) >= limit:
                return True
            return all(
                part.is_known
                and (part.is_paused or part.next >= ends.get((line.topic, part.number), 0))
                and not part.marking
                and (not part.fresh or bool(part.hand))
                for part in ours.values()
            ) and (line.shelf.sleep() > 0)

        with line.changed:
            line.changed.wait_for(is_read, deadline - time.monotonic())
            return line.parts == ours

    def has_suspect(self) -> bool:
        if not self.begin(fetching=False):
            return False
        if not self._has_bell:
            self._wait_until_read(self.retry, 1, time.monotonic() + READ_WITHIN)
        with self.retry.changed:
            return self.retries.suspect() is not None

    def take_suspect(self, by: str) -> Delivery | None:
        """Its start is on record, confirmed, when this returns."""
        if not self.has_suspect():
            return None
        with self.retry.changed:
            found = self.retries.suspect()
            if found is None:
                return None
            part, record = found
            delivery = self._read(part, record)
            part.wake(record.offset())
            part.hand_out(record)
            part.starts.setdefault(record.offset(), []).append(Start(by[:80], round(time.time(), 3)))
            part.starts[record.offset()] = part.starts[record.offset()][-20:]
            part.high = max(part.high, record.offset())
        try:
            self.retry.commits.require()
        except BaseException:
            with self.retry.changed:
                if record.offset() in part.hand:
                    part.put_back(record.offset())
            raise
        return delivery if self.is_held(delivery.receipt) else None

    def are_held(self, places: "Places") -> bool:
        """Whether all of these are in hand, in partitions that are still ours. Asked of batches, since it is of most."""
        return all(not part.is_lost and all(map(part.hand.__contains__, offsets)) for part, offsets in places.items())

    def is_held(self, receipt: Receipt) -> bool:
        part, offset = receipt.part, receipt.offset
        return (offset in part.hand and not part.is_lost) or offset in part.away

    def record(self, receipt: Receipt) -> Record:
        part, offset = receipt.part, receipt.offset
        return part.away[offset][1] if offset in part.away else part.hand[offset]

    def finish(self, places: "Places") -> list[str]:
        """These are done or stored elsewhere. Returns the references of those whose partition has gone: others are to be told."""
        refs: list[str] = []
        for part, offsets in places.items():
            line = self.line(part)
            with line.changed:
                away = [offset for offset in offsets if offset in part.away] if part.away else []
                refs += [part.away.pop(offset)[0] for offset in away]
                part.finish_all(offsets if not away else [offset for offset in offsets if offset not in away])
                line.changed.notify_all()
        return refs

    def put_back(self, places: "Places") -> None:
        """These were not started. What was read ahead is left to others too, until somebody fetches again."""
        for part, offsets in places.items():
            with self.line(part).changed:
                for offset in offsets:
                    if offset in part.hand:
                        part.put_back(offset)
        for line in self.lines:
            with line.changed:
                line.rest()
                line.changed.notify_all()

    def lost(self) -> bool:
        """Whether something was taken from us since this was asked last."""
        found = any(line.lost_something for line in self.lines)
        for line in self.lines:
            line.lost_something = False
        return found

    def close(self) -> None:
        for line in self.lines:
            line.close()


Places = Mapping[Part, Sequence[int]]
"""Messages by their partitions and offsets."""


def by_part(deliveries: Iterable[Delivery]) -> Places:
    found: dict[Part, list[int]] = {}
    last, offsets = None, list[int]()
    for receipt in map(_receipt, deliveries):
        if receipt.part is not last:
            last = receipt.part
            offsets = found.setdefault(last, [])
        offsets.append(receipt.offset)
    return found


def _count(taken: Sequence[tuple[Part, Sequence[Record]]]) -> int:
    return sum(len(records) for _, records in taken)
