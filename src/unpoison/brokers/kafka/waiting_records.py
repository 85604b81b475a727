"""Which records of a retry topic stand for messages that are still to be started?"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import TopicPartition

from unpoison.brokers.kafka import replays
from unpoison.brokers.kafka.asking import Place
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.envelope import HOLDER, REF, field
from unpoison.brokers.kafka.names import HELD, LANE, REPLAYS, Names
from unpoison.brokers.kafka.part import Part
from unpoison.brokers.kafka.record import Record

PAGE = 500


class Page(NamedTuple):
    """Some records of a partition, and those of them that wait."""

    part: Part
    records: Sequence[Record]
    waiting: Sequence[Record]

    def done(self) -> TopicPartition | None:
        """Take all of them for done. Returns what is to be committed then."""
        for record in self.records:
            self.part.finish(record.offset())
        position = self.part.position()
        return None if position is None else self.part.place(position)


def pages(broker: KafkaBroker, names: Names, number: int) -> Iterator[Page]:
    """What is not done in a partition, as nobody else may change it meanwhile."""
    place = (names.retry, number)
    if broker.topology.partitions(names.retry) <= number:
        return
    begin, end = broker.session.ends([place], first=True)[place], broker.session.ends([place])[place]
    offset, metadata = broker.session.committed(names.retry_group, [place]).get(place, (begin, None))
    part, start = Part(*place), max(begin, offset)
    part.take_over(offset, metadata)
    ended = _ended(broker, place, begin if number in (LANE, REPLAYS) else start, end)
    records = broker.reader.read({place: (start, end)})
    while page := list(itertools.islice(records, PAGE)):
        yield Page(part, page, [record for record in part.arrive(page) if _waits(record, ended)])


def _ended(broker: KafkaBroker, place: Place, start: int, end: int) -> Collection[str]:
    """Where somebody else may have ended what a record stands for: who held it has settled it, or an operator was too late."""
    if place[1] == HELD:
        notes = broker.reader.read({place: (start, end)})
        return {field(record, REF) or "" for record in notes if field(record, HOLDER) is None}
    if place[1] not in (LANE, REPLAYS):
        return ()
    records = list(broker.reader.read({place: (start, end)}))
    claims = {nonce for record in records if (nonce := replays.claim_of(record))}
    return claims - replays.that_count(records)


def _waits(record: Record, ended: Collection[str]) -> bool:
    if record.partition() == HELD:
        return field(record, HOLDER) is not None and (field(record, REF) or "") not in ended
    return not field(record, replays.STOP) and (replays.claim_of(record) or None) not in ended
