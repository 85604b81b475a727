"""Store messages for certain.

They are published mandatory and persistent, on a connection of its own and a channel that confirms: a server that runs out of
memory stops reading from a connection that publishes, and acknowledgements must not wait behind that. A whole batch is one
write; a message counts as stored once it is confirmed and was not returned as unroutable.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unpoison.brokers.rabbitmq.connection import Channel, Connection
from unpoison.brokers.rabbitmq.errors import Refused
from unpoison.brokers.rabbitmq.wire import Tap, publish_frames
from unpoison.errors import BrokerUnavailable
from unpoison.model.wording import counted

CONFIRM_TIMEOUT = 30.0
BLOCKED_TIMEOUT = 5.0
"""Seconds that a server may say that it is blocked before that is an error."""

CREATE_AGAIN = (
    "A consumer that starts creates it again; with create=False have an administrator run what `unpoison plan-topology` prints."
)
WRITE_BYTES = 4 * 1024 * 1024


class Copy(NamedTuple):
    """A message to be stored."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Batch:
    """Copies on their way. Filled in by the connection's thread."""

    def __init__(self, copies: Sequence[Copy], first: int) -> None:
        self.copies, self.first = copies, first
        self.open = len(copies)
        self.refused: set[int] = set()
        self.unroutable: dict[tuple[str, str], str] = {}
        self.broken: str | None = None
        self.closed: Refused | None = None
        """How the server closed the channel over something that was sent on it."""
        self.done = threading.Event()
        self._answered: list[tuple[int, int]] = []

    def close(self, low: int, high: int, positive: bool) -> None:
        self._answered.append((low - self.first, high - self.first))
        if not positive:
            self.refused.update(range(low - self.first, high - self.first + 1))
        self.open -= high - low + 1
        if self.open == 0:
            self.done.set()

    def stored(self, number: int) -> bool:
        """Whether this one is stored for certain."""
        copy = self.copies[number]
        return (
            self.done.is_set()
            and self.broken is None
            and number not in self.refused
            and (copy.exchange, copy.routing_key) not in self.unroutable
        )

    @property
    def all_stored(self) -> bool:
        return self.done.is_set() and self.broken is None and not self.refused and not self.unroutable

    def unanswered(self) -> set[int]:
        """Those for which no confirm came, and no word that they cannot be routed."""
        left = {number for number, copy in enumerate(self.copies) if (copy.exchange, copy.routing_key) not in self.unroutable}
        for low, high in self._answered:
            left.difference_update(range(low, high + 1))
        return left


class Writer(Tap):
    """A connection to publish on."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._batches: list[Batch] = []
        self._next = 1
        self._acked: set[int] = set()
        self._low = 1
        self._channel: Channel | None = None

    def submit(self, copies: Sequence[Copy]) -> Batch:
        """Send these; wait for the batch to know that they are stored."""
        with self._lock:
            channel = self._open()
            batch = Batch(copies, self._next)
            self._next += len(copies)
            self._batches.append(batch)
            frames = [publish_frames(channel.number, *copy, self.connection.frame_max) for copy in copies]
        for part in _parts(frames):
            channel.send(part)
        if not channel.is_open:
            self._break()
        return batch

    def wait(self, batch: Batch, timeout: float = CONFIRM_TIMEOUT) -> None:
        """Return once everything about the batch is known. Raises if that takes too long or the connection breaks."""
        begun = time.monotonic()
        ends = begun + timeout
        while not batch.done.wait(min(1.0, max(0.0, ends - time.monotonic()))):
            is_blocked = self.connection.blocked is not None and time.monotonic() > begun + BLOCKED_TIMEOUT
            if is_blocked or time.monotonic() >= ends:
                why = (
                    f"it accepts nothing at the moment ({self.connection.blocked})"
                    if self.connection.blocked
                    else f"no answer in {timeout:g} s"
                )
                raise BrokerUnavailable(
                    f"RabbitMQ has not confirmed {batch.open} of {counted(len(batch.copies), 'message')}: {why}."
                )
        if batch.closed is not None and batch.closed.is_forbidden:
            raise batch.closed
        if batch.broken is not None:
            hint = f" {CREATE_AGAIN}" if batch.closed is not None and batch.closed.code == 404 else ""
            raise BrokerUnavailable(
                f"RabbitMQ did not confirm {batch.open} of {counted(len(batch.copies), 'message')}: {batch.broken}.{hint}"
            )

    def renew(self) -> None:
        """Publish on a new channel from now on."""
        with self._lock:
            old, self._channel = self._channel, None
        if old is not None:
            old.close()

    def close(self) -> None:
        self.connection.close()

    def _open(self) -> Channel:
        if self._channel is not None and self._channel.is_open:
            return self._channel
        self._batches, self._next, self._low, self._acked = [], 1, 1, set()
        channel = self.connection.channel(self, self._break)
        channel.ask(lambda pika, done: pika.confirm_delivery(_never, callback=done), "asking for confirms")
        self._channel = channel
        return channel

    # Called in the connection's thread.

    def confirmed(self, tag: int, multiple: bool, positive: bool) -> None:
        low = self._low if multiple else tag
        if multiple:
            self._low = tag + 1
            late = {each for each in self._acked if each <= tag}
            self._acked -= late
        else:
            late = set()
            self._acked.add(tag)
            while self._low in self._acked:
                self._acked.discard(self._low)
                self._low += 1
        for batch in list(self._batches):
            first, last = max(low, batch.first), min(tag, batch.first + len(batch.copies) - 1)
            if first <= last:
                again = sum(first <= each <= last for each in late)
                batch.open += again  # these were confirmed one by one before
                batch.close(first, last, positive)
                if batch.done.is_set():
                    self._batches.remove(batch)

    def returned(self, exchange: str, routing_key: str, why: str) -> None:
        for batch in self._batches:
            batch.unroutable[exchange, routing_key] = why

    def _break(self) -> None:
        refused: Refused | None = self._channel.closed if self._channel is not None else None
        why = refused.text if refused is not None else self.connection.lost or "the channel was closed"
        batches, self._batches = self._batches, []
        for batch in batches:
            batch.broken = why
            batch.closed = refused if refused is not None and refused.code else None
            batch.done.set()


def _parts(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Few writes, none of them empty or much larger than need be."""
    size, part = 0, []
    for data in frames:
        part.append(data)
        size += len(data)
        if size > WRITE_BYTES:
            yield b"".join(part)
            size, part = 0, []
    if part:
        yield b"".join(part)


def _never(*_: object) -> None:
    raise AssertionError("confirms go to the tap of the channel, not through the client")


def why_not_stored(batch: Batch) -> str:
    """Why some of these copies are not stored."""
    if batch.broken is not None:
        return f"The connection broke: {batch.broken}."
    if batch.unroutable:
        (exchange, key), text = next(iter(batch.unroutable.items()))
        target = f"queue {key!r}" if not exchange else f"a queue bound to exchange {exchange!r} with the key {key!r}"
        return f"RabbitMQ cannot route to {target} ({text}): it was deleted, or its binding was. {CREATE_AGAIN}"
    return "RabbitMQ refused to store (basic.nack): the queue is full or unavailable. See its length limits and its log."
