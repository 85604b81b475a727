"""What one user of SQS shares: the connection, and the queues it knows."""

import threading
from collections.abc import Sequence

from unpoison.brokers.sqs import writing
from unpoison.brokers.sqs.connection import Connection, Denied
from unpoison.brokers.sqs.topology import Topic, Topology
from unpoison.brokers.sqs.url import Address
from unpoison.brokers.sqs.writing import Copy, No
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker import Finding


class Client:
    """One user, from open() to close()."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection = Connection(address)
        self.is_open = False
        self._lock = threading.RLock()
        self._topology = Topology(self.connection, create=True)

    def open(self, *, create: bool) -> None:
        with self._lock:
            self.is_open = True
            self._topology = Topology(self.connection, create=create)

    def ensure(self, source: str) -> list[Finding]:
        """Have what the source needs. Here, at the start, a missing right is an error in the configuration; later it may be given
        back, and is waited for."""
        with self._lock:
            try:
                return self._topology.ensure(source)
            except Denied as denied:
                raise ConfigError(str(denied)) from None

    def topic(self, source: str) -> Topic:
        with self._lock:
            if not self.is_open:
                raise BrokerUnavailable(f"The connection to {self.address.shown} is not open. Call open() first.")
            return self._topology.topic(source)

    def remake(self, source: str) -> None:
        """Create a queue again that was deleted. Where create=False forbids that, wait until it is there again."""
        with self._lock:
            try:
                self._topology.remake(source)
            except ConfigError as missing:
                raise BrokerUnavailable(str(missing)) from None

    @property
    def created(self) -> set[str]:
        """Sources that were not there before, until publishing has said so."""
        return self._topology.created

    def store(self, copies: Sequence[Copy]) -> dict[int, No]:
        """Store these; returns why some are not stored."""
        return writing.store(self.connection, copies) if copies else {}

    def counts(self, url: str) -> tuple[int, int, int]:
        """How many messages of a queue can be received, wait for their time, and are held by a consumer."""
        wanted = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "Delayed", "NotVisible")]
        found = self.connection.ask("get_queue_attributes", QueueUrl=url, AttributeNames=wanted).get("Attributes", {})
        ready, delayed, held = (int(found.get(name, 0)) for name in wanted)
        return ready, delayed, held

    def close(self) -> None:
        self.is_open = False
        self.connection.close()
