"""Open a topic as a DLQ by its own name, whoever made it: `--dlq orders.DLT`.

Others own it, so it is only read: nothing is written there, and what was moved into a store is what the collector's group has
committed. If that is lost, letters are read again, and the store knows them. To be sent back, or given up, a letter must be in a
store.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from unpoison.brokers.kafka import foreign, letters, resending
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.deadletters import original_of, store_copies
from unpoison.brokers.kafka.envelope import NewRecord, Record, header
from unpoison.brokers.kafka.errors import unavailable
from unpoison.brokers.kafka.letters import DEAD
from unpoison.brokers.kafka.names import Names
from unpoison.errors import CapabilityError, ConfigError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port import serialization
from unpoison.port.broker import STORED, WHOLE_BYTES, Published, Refused, not_sent
from unpoison.port.foreign import dlq as by_name
from unpoison.port.serialization import GIST, LETTER

AT_ONCE = 500
"""Records that are asked for together."""

Stretches = dict[PartitionKey, tuple[int, int]]


def opened(url: str, dlq: str, accepted: Collection[str]) -> "ForeignDLQ":
    by_name.check_accepted(accepted)
    broker = KafkaBroker(url)
    try:
        broker.open([], create=False)
        where, topics = broker.connection.address, broker.connection.queries.topics()
        if dlq not in topics:
            raise by_name.not_there("topic", dlq, where.shown)
        if f"{dlq}.states" in topics:
            named = [source for source, name in where.dlqs.items() if f"{where.prefix}{name}" == dlq]
            usual = dlq.removeprefix(where.prefix).removesuffix(".dlq")
            raise by_name.is_ours(dlq, named[0] if named else usual)
        return ForeignDLQ(broker, dlq, len(topics[dlq].partitions))
    except BaseException:
        broker.close()
        raise


class Place(NamedTuple):
    """Where a letter stands. Letters are listed partition by partition: their times are whatever others wrote."""

    partition: int
    offset: int


class ForeignDLQ:
    """Any topic."""

    page = 5_000

    def __init__(self, broker: KafkaBroker, topic: str, partitions: int) -> None:
        self.broker, self._topic, self._connection = broker, topic, broker.connection
        where = broker.connection.address
        self._places: list[PartitionKey] = [(topic, number) for number in range(partitions)]
        self._ids = Names(topic, where.group, where.prefix)
        self._nowhere = Names("", where.group, where.prefix)
        self.group = f"{self._ids.group}.collector"
        self._progress: dict[int, Progress] = {}
        self._committer: Consumer | None = None

    def close(self) -> None:
        if self._committer is not None:
            self._committer.close()
        self.broker.close()

    def count(self, state: str = DEAD) -> int:
        """What transactions have written, or compaction has removed, is counted too: Kafka tells numbers and not letters."""
        return sum(end - start for start, end in self._waiting().values()) if state == DEAD else 0

    def freeze(self) -> str:
        return ",".join(f"{number}.{end}" for (_, number), (_, end) in self._waiting().items())

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        if state not in (DEAD, None):
            return []
        if only is None:
            return [self._letter(each) for each in self._read(self._stretches(after, until), limit)]
        if (place := self._place(only)) is not None:
            return [self._letter(each) for each in self._read(self._one(place), 1)]
        found = (self._letter(each) for each in self._read(self._waiting(), None))
        return [each for each in found if each.message.id == only]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self.remove(letter_ids)

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        if not letter_ids:
            return []
        raise CapabilityError(
            f"Letters in {self._topic!r} can only be looked at: others own this topic, and Kafka deletes nothing from its "
            f"middle. Move them into a store, and work on them there: unpoison collect --dlq {self._topic} --store URL"
        )

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        stretches = self._stretches(after, "")
        if not after:
            self._progress = {number: Progress(start, end) for (_, number), (start, end) in stretches.items()}
        found: list[WholeLetter] = []
        for record in self._read(stretches, limit):
            self._progress[_place(record).partition].read.append(_place(record).offset)
            found.append(self._whole(record))
            most_bytes -= max(1, len(found[-1].letter.body))
            if most_bytes <= 0:
                break
        if len(found) < limit and most_bytes > 0:
            self._reached_the_end()
        return found

    def _reached_the_end(self) -> None:
        """There are no more letters: what else is there up to the end is none."""
        for each in self._progress.values():
            each.is_whole = True
        self._commit(self._progress)

    def collected(self, letter_ids: Sequence[str]) -> None:
        """Commit up to the first letter that is not in the store."""
        changed: dict[int, Progress] = {}
        for place in filter(None, map(self._place, letter_ids)):
            changed[place.partition] = self._progress[place.partition]
            changed[place.partition].done.add(place.offset)
        self._commit(changed)

    def _commit(self, changed: Mapping[int, "Progress"]) -> None:
        ends = {number: end for number, each in changed.items() if (end := each.advance()) is not None}
        if not ends:
            return
        if self._committer is None:
            self._committer = Consumer(self._connection.settings.committer(self.group))
        try:
            self._committer.commit(
                offsets=[TopicPartition(self._topic, number, end) for number, end in ends.items()], asynchronous=False
            )
        except KafkaException as error:
            raise unavailable(error, f"noting in group {self.group!r} what was collected") from None

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        """Those of unpoison to the group that gave them up, others to the topic that they came from."""
        if not letters:
            return STORED
        counts = {name: len(topic.partitions) for name, topic in self._connection.queries.topics().items()}
        made = [self._sent_back(each, counts) for each in letters]
        refused = {number: each for number, each in enumerate(made) if isinstance(each, Refused)}
        copies = {number: each for number, each in enumerate(made) if isinstance(each, NewRecord)}
        return store_copies(self._connection, copies, refused)

    def _sent_back(self, whole: WholeLetter, counts: Mapping[str, int]) -> NewRecord | Refused:
        source = whole.letter.source
        if source == self._topic:
            return not_sent(by_name.without_origin(whole.letter.id))
        is_ours = any(name == LETTER for name, _ in whole.headers)
        try:
            names = self._connection.names(source) if is_ours else self._nowhere
        except ConfigError as error:
            return not_sent(error)
        return resending.sent_back(names, whole, lambda topic: counts.get(topic, 0))

    # Reading.

    def _waiting(self) -> Stretches:
        """From the first letter that was not collected up to the end."""
        bounds = self._connection.queries.bounds(self._places)
        committed = self._connection.queries.committed(self.group, self._places)
        # Below the beginning is what Kafka has deleted since, above the end what another topic of this name had.
        starts = {place: committed.get(place, (0, None))[0] for place in self._places}
        return {place: (min(max(begin, starts[place]), end), end) for place, (begin, end) in bounds.items()}

    def _stretches(self, after: str, until: str) -> Stretches:
        """What stands behind this letter, and before these ends."""
        waiting, last = self._waiting(), self._place(after)
        if until:
            ends = {int(number): int(end) for number, _, end in (each.partition(".") for each in until.split(","))}
            waiting = {place: (start, min(end, ends.get(place[1], start))) for place, (start, end) in waiting.items()}
        if last is None:
            return waiting
        found = {place: stretch for place, stretch in waiting.items() if place[1] >= last.partition}
        here = (self._topic, last.partition)
        if here in found:
            found[here] = (max(last.offset + 1, found[here][0]), found[here][1])
        return found

    def _one(self, place: Place) -> Stretches:
        here = (self._topic, place.partition)
        begin, end = self._waiting().get(here, (0, 0))
        return {here: (place.offset, place.offset + 1)} if begin <= place.offset < end else {}

    def _read(self, stretches: Stretches, limit: int | None) -> Iterator[Record]:
        """Partition by partition. Read in parts: who wants a few letters does not wait for all. A part may be of nothing but
        what transactions wrote."""
        left = limit
        for here, (start, end) in stretches.items():
            for first in range(start, end, AT_ONCE):
                for record in list(self.broker.reader.read({here: (first, min(end, first + AT_ONCE))})):
                    if left is not None and left <= 0:
                        return
                    left = None if left is None else left - 1
                    yield record
                if left == 0:
                    return

    def _place(self, letter_id: str) -> Place | None:
        """Where this letter stands; None if it is none of this topic."""
        partition, dot, offset = letter_id.removeprefix(f"{self._topic}-").rpartition(".")
        if not letter_id.startswith(f"{self._topic}-") or not offset.isdecimal() or (dot and not partition.isdecimal()):
            return None
        place = Place(int(partition or 0), int(offset))
        return place if self._ids.letter_id(*place) == letter_id else None

    def _letter(self, record: Record) -> DeadLetter:
        id_ = self._ids.letter_id(*_place(record))
        return letters.read_letter(self._source(record), id_, DEAD, record, original_of(self.broker, record))

    def _whole(self, record: Record) -> WholeLetter:
        id_ = self._ids.letter_id(*_place(record))
        return resending.whole_letter(self._source(record), id_, record, original_of(self.broker, record))

    def _source(self, record: Record) -> str:
        """What the letter says that it came from."""
        told = foreign.told(record)
        if told is None and serialization.is_ours(header(record, LETTER)):
            return header(record, GIST[0]) or self._topic
        return (told.source if told is not None else "") or self._topic


class Progress:
    """How far the letters of a partition are in the store."""

    def __init__(self, start: int, end: int) -> None:
        self._committed, self._end = start, end
        self.read: deque[int] = deque()
        """Offsets of letters that were read, in their order, and are not known to be in the store."""
        self.done: set[int] = set()
        self.is_whole = False
        """Whether all of them were read."""

    def advance(self) -> int | None:
        """What to commit; None if that is nothing new."""
        position = self._committed
        while self.read and self.read[0] in self.done:
            self.done.discard(self.read[0])
            position = self.read.popleft() + 1
        if self.is_whole and not self.read:
            position = max(position, self._end)
        if position == self._committed:
            return None
        self._committed = position
        return position


def _place(record: Record) -> Place:
    return Place(record.partition(), record.offset())
