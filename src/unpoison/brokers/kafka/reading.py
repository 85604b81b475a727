"""How is a topic read from one offset to another, without being part of a group?"""

import time
from collections.abc import Iterator, Mapping
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.cluster_queries import Place
from unpoison.brokers.kafka.connection import Session
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import RARELY_POLLED, lacking, told, unavailable
from unpoison.brokers.kafka.names import Names
from unpoison.errors import BrokerUnavailable

BATCH = 500
SILENT_FOR = 15.0
ASKED_FOR = 10.0
READ_AHEAD = 16 * 1024
"""KiB that the client reads ahead at most; by itself it takes four times as much memory."""


class Reader:
    """Reads stretches of topics. Commits nothing, and nobody else notices."""

    def __init__(self, session: Session) -> None:
        # The client looks for its group, though it never joins: one that a user may use who may use ours.
        self._group = Names("", session.address.group, session.address.prefix).reading
        more = {
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": READ_AHEAD,
            "fetch.queue.backoff.ms": 5,  # by itself it stands still for a second whenever it has read so far ahead
        }
        self._consumer = Consumer(session.settings(**more) | {"auto.offset.reset": "earliest"} | RARELY_POLLED)
        self._known: set[str] = set()

    def read(self, stretches: Mapping[Place, tuple[int, int]]) -> Iterator[Record]:
        """The records of each partition from the first offset up to, and without, the second."""
        left = {place: end for place, (start, end) in stretches.items() if start < end}
        if not left:
            return
        try:
            self._look_up({topic for topic, _ in left})
            self._consumer.assign([TopicPartition(*place, stretches[place][0]) for place in left])
            yield from self._until(left)
        except KafkaException as error:
            raise unavailable(error, "reading") from None
        finally:
            self._consumer.unassign()

    def _look_up(self, topics: set[str]) -> None:
        """Learn where topics are that were not read before: the client asks once a second for those that it is told to read."""
        for topic in topics - self._known:
            self._consumer.list_topics(topic, timeout=ASKED_FOR)
            self._known.add(topic)

    def _until(self, left: dict[Place, int]) -> Iterator[Record]:
        heard_at = time.monotonic()
        while left:
            records = self._first()
            if records:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > SILENT_FOR:
                raise BrokerUnavailable(f"Kafka has sent nothing of {next(iter(left))[0]!r} for {SILENT_FOR:g} s.")
            for record in records:
                if (error := record.error()) is not None:
                    self._no_record(record, error, left)
                    continue
                place, offset = (record.topic(), record.partition()), record.offset()
                end = left.get(place, 0)
                if offset < end:
                    yield record
                    if offset + 1 == end:
                        del left[place]
                elif end:
                    del left[place]

    def _no_record(self, record: Record, error: KafkaError, left: dict[Place, int]) -> None:
        """The end of a partition, or a reason why there is nothing."""
        place = (record.topic(), record.partition())
        if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            why = told(lacking(error, f"Read on topic {place[0]!r} and on group {self._group!r}"))
            raise BrokerUnavailable(f"Kafka failed while reading: {why}.")
        if record.offset() >= left.get(place, record.offset() + 1):
            del left[place]

    def _first(self) -> list[Record]:
        record = self._consumer.poll(0.5)
        return [] if record is None else cast("list[Record]", [record, *self._consumer.consume(BATCH, 0)])

    def close(self) -> None:
        self._consumer.close()
