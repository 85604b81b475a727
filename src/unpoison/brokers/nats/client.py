"""What one user of the server shares: the connection that is open now, and what depends on it."""

import threading
from collections.abc import Callable, Sequence

from unpoison.brokers.nats import delays
from unpoison.brokers.nats.connection import Connection, Refused
from unpoison.brokers.nats.delays import Clock
from unpoison.brokers.nats.topology import STREAM_NOT_FOUND, Topic, Topology
from unpoison.brokers.nats.url import Address
from unpoison.brokers.nats.writing import Copy, No, Writer
from unpoison.errors import BrokerUnavailable


class Client:
    """Makes a new connection when the last one is lost and one is needed."""

    def __init__(self, address: Address, wake: Callable[[], None]) -> None:
        self.address, self._wake = address, wake
        self.create = True
        self.is_open = False
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._writer: Writer | None = None
        self._topology: Topology | None = None
        self._known: list[str] = []
        self.created: set[str] = set()
        """Sources that were not there before, until publishing has said so."""
        self._adopted: dict[str, str] = {}
        self._clock = Clock()

    def connection(self) -> Connection:
        with self._lock:
            if self._connection is None or not self._connection.is_open:
                if not self.is_open:
                    raise BrokerUnavailable(f"The connection to {self.address.shown} is not open. Call open() first.")
                if self._connection is not None:
                    self._known = self._connection.known
                self._connection = Connection(self.address, self._wake, self._known)
                self._writer, self._topology = None, None
            return self._connection

    def writer(self) -> Writer:
        with self._lock:
            connection = self.connection()
            if self._writer is None:
                self._writer = Writer(connection)
            return self._writer

    def topology(self) -> Topology:
        with self._lock:
            connection = self.connection()
            if self._topology is None:
                self._topology = Topology(connection, create=self.create, created=self.created, adopted=self._adopted)
            return self._topology

    def topic(self, source: str) -> Topic:
        with self._lock:
            return self.topology().topic(source)

    def remake(self, source: str) -> None:
        """Create a stream or consumer again that was deleted, unless create=False forbids it."""
        with self._lock:
            self.topology().forget(source)
            try:
                self.topology().ensure(source)
            except Refused as refused:
                if refused.code != STREAM_NOT_FOUND:
                    raise

    def store(self, copies: Sequence[Copy], answers: dict[int, bytes] | None = None) -> dict[int, No]:
        """Store these; returns why some are not stored. `answers` is filled with what the server said about the others."""
        return self.writer().store(copies, answers) if copies else {}

    def now(self, topic: Topic) -> float:
        """By the server's clock."""
        return self._clock.now(self.connection(), topic.names)

    def schedule(self, topic: Topic, delay: float, target: str) -> tuple[str, list[bytes]]:
        """Subject and headers for a copy that is to be at `target` after so long."""
        if delay <= 0:
            return target, []
        return delays.schedule(topic.names, self.now(topic) + delay, target, native=topic.later is None)

    def close(self) -> None:
        self.is_open = False
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._writer = self._topology = None
