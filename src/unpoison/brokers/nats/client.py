"""What one user of the server shares: the connection that is open now, and what depends on it."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from unpoison.brokers.nats.connection import Connection, Refused
from unpoison.brokers.nats.envelope import line
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.topology import STREAM_NOT_FOUND, Topic, Topology
from unpoison.brokers.nats.url import Address
from unpoison.brokers.nats.writing import Copy, No, Writer
from unpoison.errors import BrokerUnavailable
from unpoison.port.broker import Finding
from unpoison.port.copying.ids import unique

MEASURE_AGAIN = 60.0
DUE, TARGET = b"x-unpoison-due", b"x-unpoison-target"


class Clock:
    """The server's clock, seen from here. Delays go by it: the clocks of our hosts may differ by minutes."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._measured_at: float | None = None

    def now(self, connection: Connection, names: Names) -> float:
        started = time.monotonic()
        if self._measured_at is None or started - self._measured_at > MEASURE_AGAIN:
            told = _told(connection, names)
            self._ahead = told - time.time()
            self._measured_at = started
        return time.time() + self._ahead


def _told(connection: Connection, names: Names) -> float:
    """Newer servers put the time on every answer; with older ones a message is stored, looked at and removed."""
    answer = connection.ask(f"STREAM.INFO.{names.dlq}", what="asking for the time")
    if "ts" in answer:
        return moment(answer["ts"])
    subject = f"{names.starts}.clock-{unique()}"
    connection.request(subject.encode(), b"", "asking for the time")
    message: Any = connection.ask(f"STREAM.MSG.GET.{names.dlq}", {"last_by_subj": subject}, "asking for the time")["message"]
    connection.ask(f"STREAM.MSG.DELETE.{names.dlq}", {"seq": message["seq"], "no_erase": True}, "asking for the time")
    return moment(message["time"])


def moment(text: str) -> float:
    """A time as the server writes it, with nanoseconds."""
    head, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp() + float(f"0.{rest or 0}")


class Session(NamedTuple):
    """What lasts as long as one connection."""

    connection: Connection
    writer: Writer
    topology: Topology


class Client:
    """Makes a new connection when the last one is lost and one is needed."""

    def __init__(self, address: Address, wake: Callable[[], None]) -> None:
        self.address, self._wake = address, wake
        self._create, self._is_open = True, False
        self._lock = threading.RLock()
        self._last: Session | None = None
        self._known: list[str] = []
        self.created: set[str] = set()
        """Sources that were not there before, until publishing has said so."""
        self._adopted: dict[str, str] = {}
        self._clock = Clock()

    def open(self, *, create: bool) -> None:
        self._create, self._is_open = create, True

    def _session(self) -> Session:
        with self._lock:
            if self._last is None or not self._last.connection.is_open:
                if not self._is_open:
                    raise BrokerUnavailable(f"The connection to {self.address.shown} is not open. Call open() first.")
                if self._last is not None:
                    self._known = self._last.connection.known
                made = Connection(self.address, self._wake, self._known)
                topology = Topology(made, create=self._create, created=self.created, adopted=self._adopted)
                self._last = Session(made, Writer(made), topology)
            return self._last

    def connection(self) -> Connection:
        return self._session().connection

    def topic(self, source: str) -> Topic:
        with self._lock:
            return self._session().topology.topic(source)

    def ensure(self, source: str) -> list[Finding]:
        with self._lock:
            return self._session().topology.ensure(source)

    def remake(self, source: str) -> None:
        """Create a stream or consumer again that was deleted, unless create=False forbids it."""
        with self._lock:
            self._session().topology.forget(source)
            try:
                self._session().topology.ensure(source)
            except Refused as refused:
                if refused.code != STREAM_NOT_FOUND:
                    raise

    def store(self, copies: Sequence[Copy], answers: dict[int, bytes] | None = None) -> dict[int, No]:
        """Store these; returns why some are not stored. `answers` is filled with what the server said about the others."""
        return self._session().writer.store(copies, answers) if copies else {}

    def now(self, topic: Topic) -> float:
        """By the server's clock."""
        return self._clock.now(self.connection(), topic.names)

    def schedule(self, topic: Topic, delay: float, target: str) -> tuple[str, list[bytes]]:
        """Subject and headers for a copy that is to be at `target` after so long."""
        if delay <= 0:
            return target, []
        due, subject = self.now(topic) + delay, f"{topic.names.later}.{unique()}"
        if topic.later is not None:
            return subject, [line(DUE, repr(due)), line(TARGET, target)]
        at = datetime.fromtimestamp(math.ceil(due * 1000) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return subject, [line(b"Nats-Schedule", f"@at {at}"), line(b"Nats-Schedule-Target", target)]

    def close(self) -> None:
        self._is_open = False
        with self._lock:
            if self._last is not None:
                self._last.connection.close()
            self._last = None
