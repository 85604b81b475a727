"""What does one user of the servers share: its settings, its questions, and the way it stores records?

Records are stored by an idempotent producer, and stored means that every replica in sync has them.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, MemberDescription, OffsetSpec

from bezoar.brokers.kafka.connecting import Connecting
from bezoar.brokers.kafka.envelope import Copy
from bezoar.brokers.kafka.names import Names, check_name
from bezoar.brokers.kafka.troubles import lacking, told, unavailable
from bezoar.brokers.kafka.url import Address
from bezoar.errors import BrokerUnavailable

ANSWER_WITHIN = 10.0
STORED_WITHIN = 10.0
LARGEST = 64 * 1024 * 1024
DRAIN = 0.25
"""Of the session's length, the part for which a partition that is to go elsewhere waits for what runs."""

OUTDATED = (
    KafkaError._NOENT,  # noqa: SLF001 - the client has no other name for it: no leader
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
UNSETTLED = (
    *OUTDATED,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client has no other name for it
    KafkaError._DESTROY,  # noqa: SLF001 - nor for this: somebody else has just found its client outdated
)

Place = tuple[str, int]
Answer = TypeVar("Answer")


class Session:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.name = f"bezoar-{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.create = True
        self._connecting = Connecting(address)
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._clock_offset: float | None = None

    def names(self, source: str) -> Names:
        names = Names(source, self.address.group, self.address.prefix)
        check_name(source, names)
        return names

    def settings(self, **more: Any) -> dict[str, Any]:
        """For any client. Its own log lines would go to standard error past every logger; what matters we tell ourselves."""
        return {
            "client.id": self.name,
            "log_level": 0,
            "error_cb": self._connecting.hear,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.fast.interval.ms": 50,
            **more,
            **self.address.options,
        }

    def consuming(self, group: str, topic: str) -> dict[str, Any]:
        timeout = int(self.address.session_timeout * 1000)
        own = {"group.instance.id": f"{self.address.instance}.{topic}"} if self.address.instance else {}
        return {
            "max.poll.interval.ms": max(300_000, timeout),
            **self.settings(),
            "group.id": group,
            "session.timeout.ms": timeout,
            # A member learns with its next heartbeat that others have come or gone, and they wait for it.
            "heartbeat.interval.ms": max(100, min(1000, timeout // 6)),
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A partition that is added waits until the request that is on its way comes back.
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 16 * 1024,
            # A queue that was full is looked at again so soon, not after the usual second: it is read empty in less.
            "fetch.queue.backoff.ms": 10,
            "fetch.max.bytes": 16 * 1024 * 1024,
            "message.max.bytes": 16 * 1024 * 1024,
            "give_back": self.address.give_back,
            "drain": DRAIN * self.address.session_timeout,
            **own,
        }

    @property
    def admin(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = self._connecting.admin(self.settings())
            return self._admin

    def cluster(self) -> ClusterMetadata:
        """Servers and topics, as far as this user may see them."""
        return self._connecting.look(self.admin)

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                more = {
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 1,
                    "sticky.partitioning.linger.ms": 0,
                    "partitioner": "murmur2_random",
                    "message.max.bytes": LARGEST,
                    "delivery.timeout.ms": int(STORED_WITHIN * 1000),
                }
                self._producer = Producer(self.settings(**more))
                with suppress(KafkaException):
                    # One that is connected gets its number at once; one that is not asks for it a second later.
                    self._producer.list_topics("__consumer_offsets", timeout=ANSWER_WITHIN)
            return self._producer

    def store(self, copies: Sequence[Copy]) -> dict[int, KafkaError]:
        """Have all of them confirmed. Returns those that were refused, by their number, and why."""
        if not copies:
            return {}
        producer, refused, missing = self.producer, dict[int, KafkaError](), set(range(len(copies)))

        def reporter(number: int) -> Callable[[KafkaError | None, Message], None]:
            def report(error: KafkaError | None, record: Message) -> None:
                missing.discard(number)
                if error is not None:
                    refused[number] = lacking(error, f"Write on topic {copies[number].topic!r}")
                elif record.timestamp()[0] == 2:  # the server's own time, of a moment ago
                    self._clock_offset = time.time() - record.timestamp()[1] / 1000

            return report

        for number, copy in enumerate(copies):
            if error := self._produce(producer, copy, reporter(number)):
                missing.discard(number)
                refused[number] = error
        deadline = time.monotonic() + 2 * STORED_WITHIN
        while missing and time.monotonic() < deadline:
            producer.poll(0.01)
        refused |= {number: KafkaError(KafkaError._TIMED_OUT) for number in missing}  # noqa: SLF001
        if any(error.fatal() for error in refused.values()):
            with self._lock:
                self._producer = None
        return refused

    def _produce(self, producer: Producer, copy: Copy, report: Callable[..., None]) -> KafkaError | None:
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

    def must_store(self, copies: Sequence[Copy], what: str) -> None:
        if refused := self.store(copies):
            why = told(next(iter(refused.values())))
            raise BrokerUnavailable(f"Kafka refused {len(refused)} of {len(copies)} records while {what}: {why}.")

    def now(self) -> float:
        """What time it is on the server, as far as is known from what it stored last."""
        return time.time() - (self._clock_offset or 0.0)

    def learn_the_time(self, topic: str) -> None:
        """Once, by storing something there that nobody reads; without an answer our own clock has to do."""
        if self._clock_offset is None:
            self.store([Copy(topic, b"", b"clock", (), 0)])
            self._clock_offset = self._clock_offset or 0.0

    def ends(self, places: Iterable[Place], *, first: bool = False) -> dict[Place, int]:
        """Where these partitions end now, or begin."""
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()
        asked = {TopicPartition(*place): spec for place in places}
        topics = ", ".join(sorted({repr(place.topic) for place in asked}))
        right = f"Describe on topic {topics}"
        return self._patiently(lambda: self._ends(asked), "asking where partitions end", right) if asked else {}

    def _ends(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[Place, int]:
        answers = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ANSWER_WITHIN)
        return {(each.topic, each.partition): answer.result(ANSWER_WITHIN).offset for each, answer in answers.items()}

    def _patiently(self, ask: Callable[[], Answer], what: str, right: str) -> Answer:
        """Ask again while the servers are just agreeing on who answers: for a moment after a topic was made, or a server went."""
        deadline = time.monotonic() + ANSWER_WITHIN
        while True:
            try:
                return ask()
            except KafkaException as error:
                code = error.args[0].code()
                if code not in UNSETTLED or time.monotonic() > deadline:
                    raise unavailable(KafkaException(lacking(error.args[0], right)), what) from None
                if code in OUTDATED:
                    with self._lock:  # one that has seen a server go remembers for minutes who led then, or that nobody does
                        self._admin = None
                time.sleep(0.05)

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, tuple[int, str | None]]:
        """What a group has committed; what it never did is left out."""
        asked = [TopicPartition(*place) for place in places]
        found = self._patiently(
            lambda: self._committed(group, asked), "asking what was committed", f"Describe or Read on group {group!r}"
        )
        return {(each.topic, each.partition): (each.offset, each.metadata) for each in found if each.offset >= 0}

    def _committed(self, group: str, asked: list[TopicPartition]) -> Sequence[TopicPartition]:
        (answer,) = self.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, asked)], request_timeout=ANSWER_WITHIN
        ).values()
        try:
            found: Sequence[TopicPartition] = answer.result(ANSWER_WITHIN).topic_partitions
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return ()
            raise
        return found

    def members(self, group: str) -> set[str]:
        """The names under which members of this group have joined."""
        return {member.client_id for member in self._described(group)}

    def shared_out(self, group: str) -> set[str]:
        """The topics of which another member of this group has a partition."""
        others = [member for member in self._described(group) if member.client_id != self.name]
        return {place.topic for member in others for place in member.assignment.topic_partitions}

    def _described(self, group: str) -> Sequence[MemberDescription]:
        return self._patiently(lambda: self._members(group), "asking who is there", f"Describe or Read on group {group!r}")

    def _members(self, group: str) -> Sequence[MemberDescription]:
        (answer,) = self.admin.describe_consumer_groups([group], request_timeout=ANSWER_WITHIN).values()
        try:
            found: Sequence[MemberDescription] = answer.result(ANSWER_WITHIN).members
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return ()
            raise
        return found

    def close(self) -> None:
        with self._lock:
            producer, self._producer, self._admin = self._producer, None, None
        if producer is not None:
            producer.flush(1)
