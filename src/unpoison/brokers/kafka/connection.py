"""What do all parts of one broker object share: their name at the servers, and how they store and read records?

An idempotent producer stores records. Stored means that every in-sync replica has them. Reading joins no group.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from unpoison.brokers.kafka import settings
from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, ClusterQueries, PartitionKey
from unpoison.brokers.kafka.envelope import NewRecord, Record
from unpoison.brokers.kafka.errors import TIMED_OUT, ConnectionState, error_text, explain_timeout, unavailable, with_permission
from unpoison.brokers.kafka.names import Names, names_of
from unpoison.brokers.kafka.settings import ClientSettings
from unpoison.brokers.kafka.url import Address
from unpoison.errors import BrokerUnavailable
from unpoison.model.wording import counted

EXPLAINED_WITHIN = 1.0
READ_BATCH = 500
SILENT_FOR = 15.0
ASKED_FOR = 10.0


class Connection:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.name = f"unpoison-{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.state = ConnectionState(address)
        self.settings = ClientSettings(address, self.name, self.state)
        self.queries = ClusterQueries(self.name, self.settings, self.state)
        self.create = True
        """Whether missing topics may be created."""
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._clock_offset: float | None = None

    def names(self, source: str) -> Names:
        return names_of(self.address, source)

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self.settings.producer())
                with suppress(KafkaException):
                    # A connected client gets its producer id at once; one that is not yet asks for it a second later.
                    self._producer.list_topics("__consumer_offsets", timeout=ANSWER_WITHIN)
            return self._producer

    def store(self, copies: Sequence[NewRecord], places: dict[int, tuple[int, int]] | None = None) -> dict[int, KafkaError]:
        """Store these, and wait until the servers have confirmed them. Returns why some were refused, by number. `places` is
        filled with partition and offset of the others."""
        places = {} if places is None else places
        refused = self._store_together(copies, places)
        large = [number for number, why in refused.items() if why.code() == KafkaError.MSG_SIZE_TOO_LARGE]
        for number in large if len(copies) > 1 else ():
            # The client sends several records as one batch, and that was too large. Each alone may not be.
            del refused[number]
            alone: dict[int, tuple[int, int]] = {}
            if again := self._store_together([copies[number]], alone):
                refused[number] = again[0]
            else:
                places[number] = alone[0]
        return self._explained(copies, refused)

    def _store_together(self, copies: Sequence[NewRecord], places: dict[int, tuple[int, int]]) -> dict[int, KafkaError]:
        if not copies:
            return {}
        producer, refused, missing = self.producer, dict[int, KafkaError](), set(range(len(copies)))

        def reporter(number: int) -> Callable[[KafkaError | None, Message], None]:
            def report(error: KafkaError | None, record: Message) -> None:
                missing.discard(number)
                if error is not None:
                    refused[number] = with_permission(error, f"Write on topic {copies[number].topic!r}")
                    return
                places[number] = (record.partition() or 0, record.offset() or 0)
                if record.timestamp()[0] == 2:  # the server's own time, of a moment ago
                    self._clock_offset = time.time() - record.timestamp()[1] / 1000

            return report

        for number, copy in enumerate(copies):
            if error := self._produce(producer, copy, reporter(number)):
                missing.discard(number)
                refused[number] = error
        deadline = time.monotonic() + 2 * settings.STORED_WITHIN
        while missing and time.monotonic() < deadline:
            producer.poll(0.01)
        refused |= {number: KafkaError(KafkaError._TIMED_OUT) for number in missing}  # noqa: SLF001
        if any(error.fatal() for error in refused.values()):
            with self._lock:
                self._producer = None
        return refused

    def _explained(self, copies: Sequence[NewRecord], refused: dict[int, KafkaError]) -> dict[int, KafkaError]:
        if not any(error.code() in TIMED_OUT for error in refused.values()):
            return refused
        try:
            topics = self.producer.list_topics(timeout=EXPLAINED_WITHIN).topics
        except KafkaException:
            return refused  # no server is there that could say more
        why = {number: (error, copies[number].topic) for number, error in refused.items()}
        return {number: explain_timeout(error, topic, topics.get(topic)) for number, (error, topic) in why.items()}

    def _produce(self, producer: Producer, copy: NewRecord, report: Callable[..., None]) -> KafkaError | None:
        while True:
            try:
                producer.produce(copy.topic, copy.value, copy.key, copy.partition, headers=list(copy.headers), on_delivery=report)
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                refused: KafkaError = error.args[0]
                return refused
            else:
                return None

    def must_store(self, copies: Sequence[NewRecord], what: str) -> None:
        if refused := self.store(copies):
            why = error_text(next(iter(refused.values())))
            many = counted(len(copies), "record")
            raise BrokerUnavailable(f"Kafka did not confirm {len(refused)} of {many} while {what}: {why}.")

    def now(self) -> float:
        """The server's time, as far as it is known from the last record that it stored."""
        return time.time() - (self._clock_offset or 0.0)

    def learn_the_time(self, topic: str) -> None:
        """Once, by storing a record that no client reads. Without an answer our own clock has to do."""
        if self._clock_offset is None:
            self.store([NewRecord(topic, b"", b"clock", (), 0)])
            self._clock_offset = self._clock_offset or 0.0

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        self.queries.close()
        if producer is not None:
            producer.flush(1)


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
            for topic in {topic for topic, _ in left} - self._known:  # by itself the client looks only once a second
                self._consumer.list_topics(topic, timeout=ASKED_FOR)
                self._known.add(topic)
            self._consumer.assign([TopicPartition(*place, stretches[place][0]) for place in left])
            yield from self._until(left)
        except KafkaException as error:
            raise unavailable(error, "reading") from None
        finally:
            self._consumer.unassign()

    def _until(self, left: dict[PartitionKey, int]) -> Iterator[Record]:
        heard_at = time.monotonic()
        while left:
            first = self._consumer.poll(0.5)
            records = [] if first is None else cast("list[Record]", [first, *self._consumer.consume(READ_BATCH, 0)])
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

    def close(self) -> None:
        self._consumer.close()
