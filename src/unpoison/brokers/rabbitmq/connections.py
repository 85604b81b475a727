"""Keep the connections of one user of RabbitMQ.

There are up to three, each opened when it is first needed and again after it was lost. On one the server pushes messages; on one
the server is asked and suspects are pulled, since an answer must not wait behind a gigabyte of messages; on one is published,
since a server that is short of memory stops reading from a connection that publishes. If one of the first two is lost the other
is closed too: a consumer that hears of a loss drops everything it holds.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.delays import DelayNotes, Ladder, way
from unpoison.brokers.rabbitmq.properties import Header
from unpoison.brokers.rabbitmq.topology import Topology
from unpoison.brokers.rabbitmq.url import Address
from unpoison.brokers.rabbitmq.writing import Batch, Copy, Writer
from unpoison.errors import BrokerUnavailable, ConfigError

CREATE_AFTER = 1.0
"""Seconds between noticing that a queue was deleted and creating it again."""


class Connections:
    """All of one user. `on_lost` is called, from any thread, when something that was held is lost."""

    def __init__(self, address: Address, on_lost: Callable[[], None]) -> None:
        self.where, self._on_lost = address, on_lost
        self._lock = threading.RLock()
        self._is_open = False
        self.creates = True
        """Whether what is missing is created."""
        self.is_started = False
        """From then on a login that the server refuses is an outage: it may just be changing."""
        self._asking: Connection | None = None
        self._pushing: Connection | None = None
        self._topology: Topology | None = None
        self._ladder: Ladder | None = None
        self._writer: Writer | None = None
        self._known: set[str] = set()
        self._deleted: dict[str, float] = {}
        self.notes = DelayNotes()
        self.shown, self.user = address.shown, str(address.parameters.credentials.username)
        self.created: set[str] = set()
        """Sources that were not there before, until publishing has said so."""

    def open(self, *, create: bool) -> None:
        self._is_open, self.creates = True, create

    def _connected(self, name: str, on_lost: Callable[[], None] = lambda: None) -> Connection:
        try:
            return Connection(self.where, name, on_lost)
        except ConfigError as error:
            if not self.is_started:
                raise
            raise BrokerUnavailable(str(error)) from None

    def topology(self) -> Topology:
        with self._lock:
            if not self._is_open:
                raise BrokerUnavailable(f"The connection to {self.where.shown} is not open. Call open() first.")
            if self._asking is None or not self._asking.is_open or self._topology is None:
                self._asking = connection = self._connected("control", self.part_lost)
                self._topology = Topology(connection, self.where, self._known, self.created, create=self.creates)
                self._ladder = None
            return self._topology

    def ladder(self) -> Ladder:
        topology = self.topology()
        if self._ladder is None:
            self._ladder = Ladder(topology)
        return self._ladder

    def pushing(self) -> Connection:
        with self._lock:
            if self._pushing is None or not self._pushing.is_open:
                self._pushing = self._connected("consumer", self.part_lost)
            return self._pushing

    @property
    def is_pushing(self) -> bool:
        return self._pushing is not None and self._pushing.is_open

    def writer(self) -> Writer:
        with self._lock:
            if self._writer is None or not self._writer.connection.is_open:
                self._writer = Writer(self._connected("publisher"))
            return self._writer

    def store(self, copies: Sequence[Copy]) -> Batch:
        """Store these; returns once it is known of each whether it is stored."""
        batch, error = self.try_to_store(copies)
        if error is not None:
            raise error
        return batch

    def try_to_store(self, copies: Sequence[Copy]) -> tuple[Batch, BrokerUnavailable | None]:
        """As `store`; if the server leaves some without an answer, the batch tells which, and the error why. Raises only if
        nothing was sent."""
        writer = self.writer()
        batch = writer.submit(copies)
        try:
            writer.wait(batch)
        except BrokerUnavailable as error:
            self.notes.forget()
            return batch, error
        return batch, None

    def route(self, queue: str, delay: float) -> tuple[tuple[str, str], list[Header]]:
        """Exchange and routing key for a message that is to be in this queue after so long, and the headers for the way."""
        if delay <= 0:
            return ("", queue), []
        down = way(delay)
        self.ladder().ensure(down.level)
        return (down.exchange, queue), down.headers

    def require(self, source: str) -> None:
        """Raises BrokerUnavailable if the queue of a source is gone. One that we created is created again after a while."""
        if source in self._deleted and time.monotonic() > self._deleted.pop(source):
            self.create_again([source])
        if not self.topology().has(source):
            raise self.source_deleted(source)

    def source_deleted(self, source: str) -> BrokerUnavailable:
        self._deleted[source] = time.monotonic() + CREATE_AFTER
        return self.topology().deleted(source)

    def create_again(self, sources: Iterable[str]) -> None:
        """Create queues again that were deleted, if they are ours, and not too soon.

        RabbitMQ 3.10 mixes up a quorum queue with the one of the same name that it is still deleting: channels that know the
        old one never hear of the new one.
        """
        time.sleep(CREATE_AFTER)
        self.writer().renew()
        for source in sources:
            self.topology().renew(source)

    def descriptors(self) -> Sequence[int]:
        """Of the connections on which messages are held: while a process has copies of them the server sees no end."""
        found = [connection.descriptor() for connection in (self._pushing, self._asking) if connection is not None]
        return [descriptor for descriptor in found if descriptor is not None]

    def part_lost(self) -> None:
        """Have everything go back."""
        for connection in (self._pushing, self._asking):
            if connection is not None and connection.is_open:
                connection.hang_up()
        self._on_lost()

    def close(self) -> None:
        with self._lock:
            self._is_open = self.is_started = False
            for connection in (self._pushing, self._asking, self._writer):
                if connection is not None:
                    connection.close()
            self._asking = self._pushing = self._topology = self._ladder = self._writer = None
            self._known = set()
