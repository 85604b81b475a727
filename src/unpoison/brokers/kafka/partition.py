"""What does this consumer know about one partition that is its own?

Every message of it that is not done is in one place:

    expected   known from the text that the last owner left, not read yet
    resting    read, and not to be started now: its time has not come, or it must run alone
    fresh      read, may be started once the mark below which nothing starts has been moved past it
    marking    a commit that moves the mark past it is on its way
    ready      the server has confirmed that mark
    hand       given to somebody who has not settled it
    away       given to somebody, and the partition has moved on to another consumer since: a copy stands for it

No lock here: a Line has one for all its partitions.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import methodcaller
from time import monotonic

from confluent_kafka import TopicPartition

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.commit_metadata import LARGE, SMALL, Start
from unpoison.brokers.kafka.envelope import Record

# How many messages of a partition may be started before the server has confirmed what became of the ones before?
#
# Settling does not wait for a commit, so a consumer that is killed repeats all that was done since the last confirmed one. That
# matters most right after a partition was taken over from a consumer that vanished: it may have been killed by a message that
# comes again soon. So a new owner begins with few messages at a time and soon doubles that, later after a loss than otherwise.


AT_FIRST = 8
WITHOUT_LIMIT = 1_000
AFTER_A_LOSS, OTHERWISE = 0.05, 0.02
"""Seconds after which twice as many may be started. It goes by time and not by what is done: slow handlers must not wait for each
other. There is no limit any more after seven times as long."""


class SlowStart:
    """Of one partition, since its first message was handed out here."""

    def __init__(self, doubles_every: float, clock: Callable[[], float] = monotonic) -> None:
        self._doubles_every, self._clock = doubles_every, clock
        self._since: float | None = None
        self._held_back_at: int | None = None

    @property
    def is_over(self) -> bool:
        return self._window() >= WITHOUT_LIMIT

    def admit(self, wanted: int, unconfirmed: int) -> int:
        """How many of these may be started, while so many others are started or done and not confirmed."""
        if self._since is None:
            self._since = self._clock()
        window = self._window()
        admitted = min(wanted, max(0, window - unconfirmed))
        self._held_back_at = window if admitted < wanted else None
        return admitted

    def has_grown(self) -> bool:
        """Whether there is room again for what was held back. True once for each time that it grows."""
        if self._held_back_at is None or self._window() <= self._held_back_at:
            return False
        self._held_back_at = None
        return True

    def _window(self) -> int:
        if self._since is None:
            return AT_FIRST
        return min(WITHOUT_LIMIT, AT_FIRST << min(10, int((self._clock() - self._since) / self._doubles_every)))


# (the part that gave this module its question)


_offset = methodcaller("offset")

SPAN = 100_000
"""Offsets that the mark may be ahead of the first unfinished message: the next owner reads them all again."""


class Part:
    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number = topic, number
        self.topic_id = ""
        self.is_known = False
        self.is_lost = False
        self.is_revoked = False
        self.is_deleted = False
        """Whether its topic is gone, or another one by now. What is in somebody's hand is settled all the same."""
        self.is_paused = False
        self.in_order = True
        """Whether what waits for its start does so by its offsets. One whose time came, or that was not started after all, may
        wait behind others that stand after it."""
        self.first: int | None = None
        self.next = 0
        self.high = -1
        self.known_top = 0
        self.expected: dict[int, int] = {}
        self.levels: dict[int, int] = {}
        self.starts: dict[int, list[Start]] = {}
        self.early: list[Record] = []
        self.resting: dict[int, Record] = {}
        self.fresh: deque[Record] = deque()
        self.marking: list[Record] = []
        self.ready: deque[Record] = deque()
        self.hand: dict[int, Record] = {}
        self.away: dict[int, tuple[str, Record]] = {}
        self.sent: tuple[int, str] | None = None
        self.confirmed: tuple[int, str] | None = None
        self.slow_start: SlowStart | None = None
        self.unconfirmed = self.told = 0
        """How many are done of which no confirmed commit tells; and of how many of these the commit on its way tells."""
        self.at_end = -1
        self.size = self.resting_size = 0
        """Bytes of what was read and is in nobody's hand; apart from that, of what is not to be started now."""

    def take_over(self, committed: int, metadata: str | None) -> int:
        """Begin where the last owner ended. What it may have been running is noted as lost together with it. Returns how many
        these are: none if it left in peace."""
        self.is_known = True
        if committed < 0:
            return 0
        state = commit_metadata.read(committed, metadata)
        self.first = self.next = committed
        self.high, self.known_top = state.top - 1, state.top
        self.expected = {
            offset: min(2, level + (offset in state.started)) if offset not in state.starts else level
            for offset, level in state.levels.items()
        }
        self.starts = state.starts
        self.confirmed = (committed, commit_metadata.untagged(metadata)[0])
        return len(state.started | state.starts.keys())

    def arrive(self, records: Sequence[Record]) -> Sequence[Record]:
        """Records that were read, in their order. Returns those that are not done already."""
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
            self.levels[offset] = level
        return level is not None

    def ends_at(self, offset: int) -> None:
        """All that there was below this has been read."""
        self.forget_below(offset)
        self.next = max(self.next, offset)
        self.first = offset if self.first is None else self.first

    def forget_below(self, offset: int) -> None:
        """What the log no longer has is nobody's work."""
        for gone in [each for each in self.expected if each < offset]:
            del self.expected[gone]
            self.starts.pop(gone, None)

    def finish(self, offset: int) -> None:
        """It is done, or stored elsewhere."""
        self.unconfirmed += self.hand.pop(offset, None) is not None
        if record := self.wake(offset):
            self.size -= len(record)
        if self.levels:
            self.levels.pop(offset, None)
        if self.starts:
            self.starts.pop(offset, None)
        self.high = max(self.high, offset)

    def finish_all(self, offsets: Sequence[int]) -> None:
        """As finish, for many that were in somebody's hand."""
        if self.levels or self.starts or self.resting:
            for offset in offsets:
                self.finish(offset)
            return
        pop = self.hand.pop
        for offset in offsets:
            pop(offset, None)
        self.unconfirmed += len(offsets)
        self.high = max(self.high, *offsets) if offsets else self.high

    def hand_out(self, record: Record) -> None:
        self.size -= len(record)
        self.hand[record.offset()] = record

    def rest(self, record: Record) -> None:
        """It was read and is not to be started now."""
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
        """Its time has come."""
        if record := self.wake(offset):
            self.fresh.append(record)
            self.in_order = False

    def give(self, limit: int) -> list[Record]:
        """At most so many of those that may be started."""
        ready = self.ready
        count = min(limit, len(ready))
        if self.slow_start is not None:
            count = self.slow_start.admit(count, len(self.hand) + self.unconfirmed)
        taken = [ready.popleft() for _ in range(count)]
        self.size -= sum(map(len, taken))
        self.hand.update(zip(map(_offset, taken), taken, strict=True))
        return taken

    def put_back(self, offset: int) -> None:
        """It was not started."""
        record = self.hand.pop(offset)
        self.size += len(record)
        if offset in self.starts:
            self.starts[offset].pop()
            self.rest(record)
        else:
            self.fresh.appendleft(record)
            self.in_order = False

    def unmark(self) -> None:
        """Nothing but what is in somebody's hand is about to start."""
        waiting = [*self.ready, *self.marking, *self.fresh]
        self.ready.clear()
        self.marking = []
        self.fresh = deque(sorted(waiting, key=_offset))
        self.in_order = True

    def mark(self) -> None:
        """Have the next commit move the mark past what is fresh, as far as it may be moved."""
        if not self.fresh or self.marking:
            return
        limit = self.lowest + SPAN
        if self.in_order and self.fresh[-1].offset() < limit:
            self.marking, self.fresh = list(self.fresh), deque()
        else:
            self.marking = [each for each in self.fresh if each.offset() < limit]
            self.fresh = deque(each for each in self.fresh if each.offset() >= limit)

    def free(self) -> None:
        """The mark past them is confirmed."""
        self.ready.extend(self.marking)
        self.marking = []

    def unmark_failed(self) -> None:
        """The mark past them was not confirmed: they wait for the next one."""
        self.fresh.extendleft(reversed(self.marking))
        self.marking = []

    @property
    def lowest(self) -> int:
        """The first offset that is not done."""
        places: list[Collection[int]] = [self.hand, self.resting, self.expected]
        found = [min(place) for place in places if place]
        waiting = [each for each in (self.ready, self.marking, self.fresh) if each]
        found += [each[0].offset() if self.in_order else min(map(_offset, each)) for each in waiting]
        return min(found, default=max(self.next, self.high + 1))

    @property
    def is_idle(self) -> bool:
        return not (self.hand or self.ready or self.marking or self.fresh)

    def position(self) -> tuple[int, str] | None:
        """What a commit has to say now; None before anything was read."""
        if self.first is None:
            return None
        lowest, high = self.lowest, self.high
        started = len(self.hand) + len(self.ready) + len(self.marking)
        if self.marking:
            self.high = max(high, *map(_offset, self.marking[-1:] if self.in_order else self.marking))
        top = max(self.high + 1, lowest)
        if started == top - lowest and not (self.levels or self.starts):
            return lowest, commit_metadata.whole(f"{started}A" if started else "")
        found = self._text(lowest, top)
        if len(found) > commit_metadata.LONGEST // 2 and self.marking:
            # Room is left for what those that run now will leave behind: before the text is shorter, nothing starts that is not
            # in it already.
            self.fresh.extendleft(reversed([each for each in self.marking if each.offset() > high]))
            self.marking, self.high = [each for each in self.marking if each.offset() <= high], high
            found = self._text(lowest, max(high + 1, lowest))
        return lowest, found

    def _text(self, lowest: int, top: int) -> str:
        return commit_metadata.text(lowest, self._letters(top), top, self.starts)

    def _letters(self, top: int) -> list[tuple[int, str]]:
        levels = self.levels
        large = [*self.hand, *(each.offset() for each in self.ready), *(each.offset() for each in self.marking)]
        found = [(offset, LARGE[levels.get(offset, 0)]) for offset in large]
        small = [*self.resting, *(each.offset() for each in self.fresh)]
        found += [(offset, SMALL[levels.get(offset, 0)]) for offset in small if offset < top]
        found += [(offset, SMALL[level]) for offset, level in self.expected.items() if offset < top]
        return sorted(found)

    def tell(self) -> None:
        """A commit goes out that tells of all that is done."""
        self.told = self.unconfirmed

    def confirm(self, position: tuple[int, str]) -> None:
        """The server has confirmed that commit."""
        self.confirmed = position
        self.unconfirmed -= self.told
        self.told = 0

    def place(self, position: tuple[int, str]) -> TopicPartition:
        return TopicPartition(self.topic, self.number, position[0], commit_metadata.tagged(position[1], self.topic_id))

    def abandon(self) -> None:
        """Its topic was deleted, and with it what nobody has started."""
        self.is_deleted = True
        for place in (self.ready, self.fresh, self.marking, self.early, self.resting, self.expected):
            place.clear()
        self.size = self.resting_size = 0
