"""What does this consumer know about one partition that it owns?

Every message of it that is not done is in one of these:

    expected      named in the metadata that the last owner committed, not read yet
    resting       read, and not to be started now: it is not due, or it must run alone
    fresh         read; may start once the mark, above which nothing starts, has moved past it
    marking       a commit that moves the mark past it is on its way
    ready         the server has confirmed that mark
    running       fetched, and not settled
    handed_over   fetched and not settled, and the partition has gone to another consumer since: a copy stands for it

There is no lock here: an Assignment has one for all its partitions.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import methodcaller

from confluent_kafka import TopicPartition

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.commit_metadata import LARGE, SMALL, Start
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.slow_start import SlowStart
from unpoison.model.message import Counters

SPAN = 100_000
"""Offsets that the mark may be ahead of the first unfinished message: the next owner reads all of them again."""

MUCH_RESTS, MUCH_WAITS, SOURCE_PAUSED = "much rests", "much waits", "source paused"
"""Why a partition is not read: too much of it is not due, or is read already and has not started; or its source is paused."""

_offset = methodcaller("offset")


class Partition:
    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number = topic, number
        self.topic_id = ""
        self.is_known = False
        self.is_lost = False
        self.is_revoked = False
        self.is_deleted = False
        """Whether its topic was deleted, and perhaps created again. What runs is settled all the same."""
        self.pauses: set[str] = set()
        """Why it is not read at the moment: MUCH_RESTS, MUCH_WAITS, SOURCE_PAUSED."""
        self.in_order = True
        """Whether fresh, marking and ready are in the order of their offsets. A message that became due, or was put back, may
        come after others with higher offsets."""
        self.first: int | None = None
        self.next = 0
        self.high = -1
        self.known_top = 0
        self.expected: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.starts: dict[int, list[Start]] = {}
        self.early: list[Record] = []
        self.resting: dict[int, Record] = {}
        self.fresh: deque[Record] = deque()
        self.marking: list[Record] = []
        self.ready: deque[Record] = deque()
        self.running: dict[int, Record] = {}
        self.handed_over: dict[int, tuple[str, Record]] = {}
        """By offset, the reference to the copy, and the record itself."""
        self.sent: tuple[int, str] | None = None
        self.confirmed: tuple[int, str] | None = None
        self.slow_start: SlowStart | None = None
        self.unconfirmed = self.reported = 0
        """How many messages are done and in no confirmed commit; and how many of those the commit on its way reports."""
        self.at_end = -1
        self.size = self.resting_size = 0
        """Bytes of messages that were read and do not run; those that rest are counted apart."""

    def take_over(self, committed: int, metadata: str | None) -> int:
        """Begin where the last owner ended. Messages that it may have been running count one loss more. Returns how many
        those are: none if it left in peace."""
        self.is_known = True
        if committed < 0:
            return 0
        state = commit_metadata.decode(committed, metadata)
        self.first = self.next = committed
        self.high, self.known_top = state.top - 1, state.top
        self.expected = {
            offset: min(2, level + (offset in state.started)) if offset not in state.starts else level
            for offset, level in state.losses.items()
        }
        self.starts = state.starts
        self.confirmed = (committed, commit_metadata.split_topic_id(metadata)[0])
        return len(state.started | state.starts.keys())

    def arrive(self, records: Sequence[Record]) -> Sequence[Record]:
        """Records that were read, in order. Returns those that are not done already."""
        first = records[0].offset()
        if self.first is None:
            self.first = first
        if first >= self.next and first >= self.known_top:
            if self.expected:
                self.forget_below(first)
            self.next = records[-1].offset() + 1
            return records
        return [record for record in records if self._is_to_do(record.offset())]

    def _is_to_do(self, offset: int) -> bool:
        if offset < self.next:
            return False
        self.next = offset + 1
        if offset >= self.known_top:
            return True
        self.forget_below(offset)
        level = self.expected.pop(offset, None)
        if level:
            self.losses[offset] = level
        return level is not None

    def ends_at(self, offset: int) -> None:
        """Everything below this offset has been read."""
        self.forget_below(offset)
        self.next = max(self.next, offset)
        self.first = offset if self.first is None else self.first

    def forget_below(self, offset: int) -> None:
        """Messages that the log no longer has need no work."""
        for gone in [each for each in self.expected if each < offset]:
            del self.expected[gone]
            self.starts.pop(gone, None)

    def finish(self, offset: int) -> None:
        """It is done, or stored elsewhere."""
        self.unconfirmed += self.running.pop(offset, None) is not None
        if (record := self.wake(offset)) is not None:  # a record without a body has a length of 0, and is false
            self.size -= len(record)
        if self.losses:
            self.losses.pop(offset, None)
        if self.starts:
            self.starts.pop(offset, None)
        self.high = max(self.high, offset)

    def finish_all(self, offsets: Sequence[int]) -> None:
        """As `finish`, for many that ran."""
        if self.losses or self.starts or self.resting:
            for offset in offsets:
                self.finish(offset)
            return
        pop = self.running.pop
        for offset in offsets:
            pop(offset, None)
        self.unconfirmed += len(offsets)
        self.high = max(self.high, *offsets) if offsets else self.high

    def start_alone(self, offset: int, start: Start) -> None:
        """It rested, and starts with this on record. Of earlier starts the last ones are kept."""
        if (record := self.wake(offset)) is not None:  # a record without a body has a length of 0, and is false
            self.size -= len(record)
            self.running[offset] = record
            self.starts[offset] = [*self.starts.get(offset, ()), start][-20:]
            self.high = max(self.high, offset)

    def rest(self, record: Record) -> None:
        """It was read, and is not to be started now."""
        self.resting[record.offset()] = record
        self.size -= len(record)
        self.resting_size += len(record)

    def wake(self, offset: int) -> Record | None:
        """It need not rest any longer."""
        record = self.resting.pop(offset, None)
        if record is not None:
            self.size += len(record)
            self.resting_size -= len(record)
        return record

    def wake_up(self, offset: int) -> None:
        """It is due."""
        if (record := self.wake(offset)) is not None:  # a record without a body has a length of 0, and is false
            self.fresh.append(record)
            self.in_order = False

    def take(self, limit: int) -> list[Record]:
        """At most so many of the messages that may start."""
        ready = self.ready
        count = min(limit, len(ready))
        if self.slow_start is not None:
            count = self.slow_start.admit(count, len(self.running) + self.unconfirmed)
        taken = [ready.popleft() for _ in range(count)]
        self.size -= sum([len(record) for record in taken])
        self.running.update({record.offset(): record for record in taken})
        return taken

    def put_back(self, offset: int) -> None:
        """It was not started."""
        record = self.running.pop(offset)
        self.size += len(record)
        if offset in self.starts:
            self.starts[offset].pop()
            if not self.starts[offset]:  # or the next owner would take it for started
                del self.starts[offset]
            self.rest(record)
        else:
            self.fresh.appendleft(record)
            self.in_order = False

    def cut_off(self) -> None:
        """What ran was ended without a result. It starts again, as after a consumer that vanished."""
        running, self.running = self.running, {}
        for offset, record in reversed(running.items()):
            self.size += len(record)
            if offset in self.starts:
                self.rest(record)
            else:
                self.losses[offset] = min(2, self.losses.get(offset, 0) + 1)
                self.fresh.appendleft(record)
                self.in_order = False

    def unmark(self) -> None:
        """Nothing that does not run yet is about to start. The mark goes back past it: however long it waits now, no commit
        needs a word about it."""
        self.fresh = deque(sorted([*self.ready, *self.marking, *self.fresh], key=_offset))
        self.ready, self.marking, self.in_order = deque(), [], True
        for record in reversed(self.fresh):
            offset = record.offset()
            if offset < self.high or offset in self.losses:
                break
            self.high = min(self.high, offset - 1)

    def mark(self, grant: Callable[[int], int] = int) -> None:
        """Have the next commit move the mark past fresh messages, as far as it may be moved. `grant` says how many of so many."""
        if not self.fresh or self.marking:
            return
        limit = self.first_unfinished + SPAN
        if self.in_order and self.fresh[-1].offset() < limit:
            self.marking, self.fresh = list(self.fresh), deque()
        else:
            self.marking = [each for each in self.fresh if each.offset() < limit]
            self.fresh = deque(each for each in self.fresh if each.offset() >= limit)
        if (granted := grant(len(self.marking))) < len(self.marking):
            self.fresh.extendleft(reversed(self.marking[granted:]))
            del self.marking[granted:]

    def free(self) -> None:
        """The server has confirmed the mark past them."""
        self.ready.extend(self.marking)
        self.marking = []

    def unmark_failed(self) -> None:
        """The mark past them was not confirmed: they wait for the next one."""
        self.fresh.extendleft(reversed(self.marking))
        self.marking = []

    @property
    def first_unfinished(self) -> int:
        """The first offset that is not done."""
        places: list[Collection[int]] = [self.running, self.resting, self.expected]
        found = [min(place) for place in places if place]
        waiting = [each for each in (self.ready, self.marking, self.fresh) if each]
        found += [each[0].offset() if self.in_order else min(map(_offset, each)) for each in waiting]
        return min(found, default=max(self.next, self.high + 1))

    @property
    def is_paused(self) -> bool:
        return bool(self.pauses)

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.ready or self.marking or self.fresh)

    def position(self) -> tuple[int, str] | None:
        """Offset and metadata to commit now; None before anything was read."""
        if self.first is None:
            return None
        lowest, high, encode = self.first_unfinished, self.high, commit_metadata.encode
        started = len(self.running) + len(self.ready) + len(self.marking)
        if self.marking:
            self.high = max(high, *map(_offset, self.marking[-1:] if self.in_order else self.marking))
        top = max(self.high + 1, lowest)
        if started == top - lowest and not (self.losses or self.starts):
            return lowest, commit_metadata.assemble(f"{started}A" if started else "")
        found = encode(lowest, self._letters(top), top, self.starts)
        if len(found) > commit_metadata.LONGEST // 2 and self.marking:
            # Leave room for the gaps that running messages will leave behind: until the text is shorter, nothing starts that
            # is not in it already.
            self.fresh.extendleft(reversed([each for each in self.marking if each.offset() > high]))
            self.marking, self.high = [each for each in self.marking if each.offset() <= high], high
            top = max(high + 1, lowest)
            found = encode(lowest, self._letters(top), top, self.starts)
        return lowest, found

    def _letters(self, top: int) -> list[tuple[int, str]]:
        losses = self.losses
        large = [*self.running, *(each.offset() for each in self.ready), *(each.offset() for each in self.marking)]
        found = [(offset, LARGE[losses.get(offset, 0)]) for offset in large]
        small = [*self.resting, *(each.offset() for each in self.fresh)]
        found += [(offset, SMALL[losses.get(offset, 0)]) for offset in small if offset < top]
        found += [(offset, SMALL[level]) for offset, level in self.expected.items() if offset < top]
        return sorted(found)

    def note_sent(self) -> None:
        """A commit goes out that reports everything done so far."""
        self.reported = self.unconfirmed

    def confirm(self, position: tuple[int, str]) -> None:
        """The server has confirmed that commit."""
        self.confirmed = position
        self.unconfirmed -= self.reported
        self.reported = 0

    def to_commit(self, position: tuple[int, str]) -> TopicPartition:
        return TopicPartition(self.topic, self.number, position[0], commit_metadata.with_topic_id(position[1], self.topic_id))

    def abandon(self) -> None:
        """Its topic was deleted, and with it every message that has not started."""
        self.is_deleted = True
        for place in (self.ready, self.fresh, self.marking, self.early, self.resting, self.expected):
            place.clear()
        self.size = self.resting_size = 0

    def counters_of(self, record: Record, counters: Counters) -> Counters:
        """The counters of a record, with the losses and starts that this partition knows of."""
        offset = record.offset()
        for _ in range(self.losses.get(offset, 0)):
            counters = counters.returned()
        for start in self.starts.get(offset, ()):
            counters = counters.marked(start.by, start.at)
        return counters


class Assignment:
    """The partitions of one topic that this consumer owns, and the lock for everything that is known about them."""

    def __init__(self, topic: str, ring: Callable[[], None], changed: threading.Condition | None = None) -> None:
        self.topic, self.ring = topic, ring
        self.changed = changed or threading.Condition()
        self.partitions: dict[int, Partition] = {}
        self.handed_over: set[Partition] = set()
        """Partitions of other consumers by now, of which messages still run here."""
        self.topic_id: str | None = None
        """Of the topic that is consumed, or MISSING; None before it is known."""
        self.is_joined = False
        """Whether the group has taken us in."""
        self.is_moving = False
        """Whether the group is about to rebalance."""
        self.is_closing = False
        self.lost_something = False
        """Whether messages ran in a partition that was lost, until fetching or settling has reported it."""

    def named(self, places: Sequence[TopicPartition]) -> "list[Partition]":
        """Those of these partitions that we own."""
        ours = (self.partitions.get(place.partition) for place in places if place.topic == self.topic)
        return [partition for partition in ours if partition is not None]
