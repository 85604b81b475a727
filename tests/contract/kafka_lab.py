"""How are the faults of Kafka caused?"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from servers.kafka import Kafka
from servers.kafka_cluster import Cluster
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address
from unpoison.model.message import Delivery, Native, Outgoing
from unpoison.port.broker import Broker
from unpoison.testing import Lab
from unpoison.testing.given import PLAIN_ID
from unpoison.testing.isolation.diary import wait_until

SESSION_TIMEOUT = 1.0
"""Seconds after which the server gives a killed consumer's partitions to others; promises about kills wait for that."""


class KafkaLab(Lab):
    """Topics and groups of its own."""

    modules = tuple(
        f"unpoison.brokers.kafka.{name}"
        for name in (
            "broker",
            "subscription",
            "connection",
            "cluster_queries",
            "deadletters",
            "foreign_dlq",
            "letters",
            "waiting",
        )
    )
    readers = ("unpoison.brokers.kafka.envelope.read_envelope", "unpoison.brokers.kafka.subscription.Subscription._deliveries")
    shares_by_turns = False  # a connection gets partitions, and what is in them

    def __init__(
        self, server: Kafka | Cluster, folder: Path, *, partitions: int = 1, session_timeout: float = SESSION_TIMEOUT
    ) -> None:
        options = f"session_timeout={session_timeout}&give_back=1&partitions={partitions}"
        super().__init__(f"{server.fresh()}&{options}", folder)
        self._now, self._ahead = Connection.now, 0.0

    def fill_a_dlq_of_others(self, name: str, bodies: Sequence[bytes]) -> str:
        where = address(self.url)
        topic, producer = f"{where.prefix}{name}", Producer(where.options)
        admin = AdminClient(where.options)  # which must live until the answer is there
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
        for number, body in enumerate(bodies):
            producer.produce(topic, body, partition=number % 2)
        producer.flush()
        return topic

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        raise NotImplementedError("Kafka hands over partitions and not messages: see tests/fault/kafka/test_groups.py")

    def shift_clock(self, seconds: float) -> None:
        """The server's clock, as the connections of this process know it."""
        self._ahead += seconds
        told, ahead = self._now, self._ahead
        Connection.now = lambda connection: told(connection) + ahead  # type: ignore[assignment]

    def close(self) -> None:
        super().close()
        Connection.now = self._now

    def delete(self) -> None:
        """Everything that was made: a server with thousands of partitions is busy with nothing else."""
        connection = Connection(address(self.url))
        mine = [
            name for name in connection.queries.admin.list_topics(timeout=30).topics if name.startswith(connection.address.prefix)
        ]
        for answer in connection.queries.admin.delete_topics(mine).values() if mine else ():
            with suppress(KafkaException):
                answer.result(30)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self.delete()

    def refused_message(self, broker: Broker) -> Outgoing:
        """An administrator limited the size of records in the topic of the source."""
        self.limit("100000", "topic")
        assert isinstance(broker, KafkaBroker)
        topic = ConfigResource(ResourceType.TOPIC, broker.connection.names("orders").topic)

        def is_in_force() -> bool:
            (answer,) = broker.connection.queries.admin.describe_configs([topic]).values()
            return answer.result(10)["max.message.bytes"].value == "100000"

        wait_until(is_in_force, lambda: "The limit is not in force")
        return Outgoing(PLAIN_ID, "orders", b"x" * 200_000)

    lasting = ("topic", "partition", "offset", "timestamp", "timestamp_type")

    def send_foreign(self, body: bytes | None, key: bytes, headers: Sequence[tuple[str, bytes]]) -> Native:
        broker = self.broker("orders")
        assert isinstance(broker, KafkaBroker)
        producer, topic = Producer(broker.connection.address.options), broker.connection.names("orders").topic
        producer.produce(topic, body, key=key, headers=list(headers), timestamp=1_700_000_000_123)
        assert producer.flush(30) == 0
        place = {"topic": topic, "partition": 0, "offset": 0, "timestamp": 1_700_000_000.123, "timestamp_type": "create"}
        return Native(key, tuple(headers), place)

    def losing_answers(self, marker: bytes) -> AbstractContextManager[Broker]:
        pytest.skip("clients go to the address that the server tells, past every proxy: see tests/fault/kafka/test_server.py")

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """An administrator limited the size of records in the topic of dead letters."""
        self.limit("1")
        try:
            yield
        finally:
            self.limit(None)

    def limit(self, size: str | None, kind: str = "dlq") -> None:
        """Set `max.message.bytes` of a topic of 'orders', or take it back, and return once that is in force."""
        broker = self.broker("orders")
        assert isinstance(broker, KafkaBroker)
        operation = AlterConfigOpType.DELETE if size is None else AlterConfigOpType.SET
        change = ConfigEntry("max.message.bytes", size, incremental_operation=operation)
        name, admin = getattr(broker.connection.names("orders"), kind), broker.connection.queries.admin
        topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        for answer in admin.incremental_alter_configs([topic]).values():
            answer.result(10)

        def is_in_force() -> bool:
            """The controller has answered; the server that keeps the topic learns of it a moment later."""
            (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
            entry = found.result(10)["max.message.bytes"]
            return bool(entry.is_default) if size is None else entry.value == size

        wait_until(is_in_force, lambda: "Kafka does not know of the new limit")


class SweptLab(KafkaLab):
    """Deletes everything whenever it is closed: between two kills, when nothing that was made for the last one is needed."""

    def close(self) -> None:
        super().close()
        self.delete()
