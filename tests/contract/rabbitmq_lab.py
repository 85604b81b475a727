"""How are the faults of RabbitMQ caused?"""

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import pika

from servers.errors import ServerFailed
from servers.rabbitmq import RabbitMQ as Server
from tests.contract.cutting_proxy import CuttingProxy, opened_through
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.properties import Header, Properties
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.model.message import Delivery, Native, Outgoing
from unpoison.port.broker import Broker, Ring
from unpoison.testing import Lab
from unpoison.testing.isolation.diary import wait_until

PROPERTIES = (
    ("content_type", "text/plain"),
    ("content_encoding", "identity"),
    ("correlation_id", "correlated"),
    ("reply_to", "answers"),
    ("type", "order.placed"),
    ("app_id", "shop"),
)


class RabbitMQLab(Lab):
    """A virtual host of its own."""

    modules = (
        *(
            f"unpoison.brokers.rabbitmq.{name}"
            for name in ("broker", "arrivals", "handing_back", "copies", "deadletters", "foreign_dlq", "queue_pass", "writing")
        ),
        "unpoison.port.copying.settling",
        "unpoison.port.copying.suspects",
        "unpoison.port.copying.whole_dlq",
        "unpoison.port.copying.dlq_index",
    )
    readers = tuple(f"unpoison.brokers.rabbitmq.envelope.{name}" for name in ("look", "plain"))

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        super().__init__(server.fresh(), folder)
        self.vhost = urlsplit(self.url).path[1:]

    @property
    def administrators_url(self) -> str:
        return f"{self.url}?management={self._server.http_url}"

    def fill_a_dlq_of_others(self, name: str, bodies: Sequence[bytes]) -> str:
        with closing(pika.BlockingConnection(pika.URLParameters(self.url))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(name, durable=True)
            for body in bodies:
                channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
        return name

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """The connection is cut, and the server has put everything back. (Until it has noticed, none can be taken.)"""
        assert isinstance(broker, RabbitMQBroker)
        holder, queue = deliveries[0].receipt.holder, deliveries[0].receipt.holder._queue
        connection = holder._channel.connection
        # An answer on the same channel: the acks before it have arrived.
        holder._channel.look_at(queue)
        connection.wire._transport._sock.shutdown(socket.SHUT_RDWR)
        wait_until(
            lambda: not connection.is_open and not any(each.receipt.holder.alive for each in deliveries),
            lambda: "It is connected",
        )
        looking = RabbitMQBroker(self.url)
        looking.open([])
        try:
            ready = lambda: looking.connections.topology().count(queue)[0]  # noqa: E731
            wait_until(lambda: ready() >= len(deliveries), lambda: "They did not come back")
        finally:
            looking.close()

    def refused_message(self, broker: Broker) -> Outgoing:
        """Its headers do not fit into a frame. (Bodies that the server refuses: tests/fault/rabbitmq/test_publishing.py.)"""
        return Outgoing("large-headers", "orders", b"x", headers={"large": "x" * 200_000})

    lasting = (*(name for name, _ in PROPERTIES), "priority", "exchange", "routing_key")

    def send_foreign(self, body: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> Native:
        """RabbitMQ has no keys. Two headers of one name are more than most clients write, and version 4 drops the second."""
        broker = self.broker("orders")
        assert isinstance(broker, RabbitMQBroker)
        entries = [Header(name.encode(), b"S" + struct.pack(">I", len(value)) + value) for name, value in headers]
        texts = [(name, bytes((len(text),)) + text.encode()) for name, text in PROPERTIES]
        like = Properties(others=(*texts, ("priority", b"\x04"), ("timestamp", (1_700_000_000).to_bytes(8))))
        assert broker.connections.store([Copy("", "orders", properties.write("theirs", entries, like), body)]).stored(0)
        told = {**dict(PROPERTIES), "priority": 4, "timestamp": 1_700_000_000, "message_id": "theirs", "expiration": None}
        if not self._server.version().startswith("3."):
            headers = list(reversed({name: (name, value) for name, value in reversed(headers)}.values()))
        return Native(None, tuple(headers), {**told, "exchange": "", "routing_key": "orders", "delivery_mode": 2})

    def losing_answers(self, marker: bytes) -> AbstractContextManager[Broker]:
        return opened_through(CuttingProxy(self.url, marker), RabbitMQBroker)

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """An administrator took away the right to write to the exchange."""
        with self._permitting(write="^(?!dlx$).*"):
            yield

    @contextmanager
    def nothing_can_be_published(self) -> Iterator[None]:
        with self._permitting(write="^$"):
            yield

    @contextmanager
    def _permitting(self, **rights: str) -> Iterator[None]:
        self._permit(**rights)
        try:
            yield
        finally:
            self._permit()

    def _permit(self, **rights: str) -> None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._server.http("PUT", f"/api/permissions/{self.vhost}/{urlsplit(self.url).username}", everything | rights)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._server.http("DELETE", f"/api/vhosts/{self.vhost}")


class ClassicLab(RabbitMQLab):
    """One whose sources were there before, as classic queues."""

    has_sources = True

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder)
        self._declare("orders")

    def broker(self, *sources: str, ring: Ring | None = None) -> Broker:
        for source in sources:
            self._declare(source)
        return super().broker(*sources, ring=ring)

    def _declare(self, source: str) -> None:
        classic = {"durable": True, "arguments": {"x-queue-type": "classic"}}
        with suppress(ServerFailed):  # it is there, made by a consumer that came first
            self._server.http("PUT", f"/api/queues/{self.vhost}/{quote(source, safe='')}", classic)
