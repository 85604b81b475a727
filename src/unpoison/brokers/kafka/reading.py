"""How is a topic read from one offset to another, without joining a group?"""

import time
from collections.abc import Iterator, Mapping
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import error_text, unavailable, with_permission
from unpoison.brokers.kafka.names import Names
from unpoison.errors import BrokerUnavailable

BATCH = 500
SILENT_FOR = 15.0
ASKED_FOR = 10.0


class Reader:
    """Reads stretches of topics. It commits nothing, and disturbs no consumer."""

    def __init__(self, connection: Connection) -> None:
        # The client looks up its group though it never joins: use one that a user with rights to our groups may use.
        self._group = Names("", connection.address.group, connection.address.prefix).reading
        self._consumer = Consumer(connection.settings.reader(self._group))
        self._known: set[str] = set()

    def read(self, stretches: Mapping[PartitionKey, tuple[int, int]]) -> Iterator[Record]:
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
        """Look up topics that were not read before: by itself the client looks only once a second."""
        for topic in topics - self._known:
            self._consumer.list_topics(topic, timeout=ASKED_FOR)
            self._known.add(topic)

    def _until(self, left: dict[PartitionKey, int]) -> Iterator[Record]:
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

    def _no_record(self, record: Record, error: KafkaError, left: dict[PartitionKey, int]) -> None:
        """The end of a partition, or an error."""
        place = (record.topic(), record.partition())
        if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            why = error_text(with_permission(error, f"Read on topic {place[0]!r} and on group {self._group!r}"))
            raise BrokerUnavailable(f"Kafka failed while reading: {why}.")
        if record.offset() >= left.get(place, record.offset() + 1):
            del left[place]

    def _first(self) -> list[Record]:
        record = self._consumer.poll(0.5)
        return [] if record is None else cast("list[Record]", [record, *self._consumer.consume(BATCH, 0)])

    def close(self) -> None:
        self._consumer.close()
