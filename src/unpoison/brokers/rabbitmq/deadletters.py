"""Look at dead letters, send them again and remove them.

A queue cannot be searched, so a look takes letters and puts them back (queue_pass.py). A letter that was dealt with moves to
`<queue>.dlq.history`. One that is sent again is stored once for both places, the source and the history, and then taken from the
DLQ: a crash in between is seen there, and it is not sent twice.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from unpoison.brokers.rabbitmq import letters
from unpoison.brokers.rabbitmq.connection import Channel, Connection
from unpoison.brokers.rabbitmq.errors import IN_USE, Refused
from unpoison.brokers.rabbitmq.letters import Found, SentBack
from unpoison.brokers.rabbitmq.names import dlq_of, history_of, lock_of
from unpoison.brokers.rabbitmq.queue_pass import QueuePass, waiting_in
from unpoison.brokers.rabbitmq.sending_back import Origins, send_back, whole_letter
from unpoison.brokers.rabbitmq.topology import Topology
from unpoison.brokers.rabbitmq.wire import Arrived, Tap
from unpoison.brokers.rabbitmq.writing import Batch, Copy, why_not_stored
from unpoison.errors import BrokerUnavailable, PayloadError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.wording import counted
from unpoison.port.broker import Progress, Published
from unpoison.port.copying.dlq_index import MOST_BYTES, Entry, Keep, portions
from unpoison.port.copying.whole_dlq import WholeDLQ

if TYPE_CHECKING:
    from unpoison.brokers.rabbitmq.broker import RabbitMQBroker

PATIENCE, ASK_AGAIN = 120.0, 0.02
"""Seconds to wait for the lock of a DLQ, and between two tries."""


@contextmanager
def locked(topology: Topology, source: str) -> Iterator[None]:
    """Keep other operators from the dead letters of this source.

    Letters can only be looked at by taking them out for a moment: another look would find none meanwhile. The lock is the one
    consumer that an empty queue may have, so the server ends it with its connection. It needs no right to declare.
    """
    ends = time.monotonic() + PATIENCE
    while (lock := _lock(topology.connection, lock_of(topology.where, source))) is None:
        if time.monotonic() > ends:
            raise BrokerUnavailable(
                f"Another operator has been working on the dead letters of {source!r} for {PATIENCE:g} s. Try again later."
            )
        time.sleep(ASK_AGAIN)
    try:
        yield
    finally:
        lock.close()


def _lock(connection: Connection, queue: str) -> Channel | None:
    """The channel that has the lock as long as it is open; None if another has it."""
    channel = connection.channel(Tap())  # which drops a message that another program put there
    try:
        channel.consume(queue, auto_ack=True, exclusive=True)
    except Refused as refused:
        if IN_USE in refused.text:
            return None
        raise
    return channel


AT_ONCE, UNCONFIRMED = 250, 20
"""Letters that are sent together, and how many times so many may be on their way."""
WAITING, DEALT_WITH = ("dead",), ("replayed", "discarded")


class RabbitMQDeadLetters(WholeDLQ):
    """The DLQ of one source."""

    def __init__(self, broker: "RabbitMQBroker", source: str) -> None:
        super().__init__(broker, source, partial(_reading, broker, source), partial(_counted, broker, source))
        self._connections = broker.connections

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return send_back(self._connections, self._source, letters)


def _counted(broker: "RabbitMQBroker", source: str) -> int:
    """Under the lock: the server does not count letters that are being looked at."""
    topology = broker.connections.topology()
    with locked(topology, source):
        return waiting_in(topology.connection, dlq_of(topology.where, source))


@contextmanager
def _reading(broker: "RabbitMQBroker", source: str) -> Iterator["LettersReading"]:
    with locked(broker.connections.topology(), source):
        reading = LettersReading(broker, source)
        try:
            yield reading
        finally:
            reading.close()


class LettersReading:
    """The DLQ and its history, taken out of their queues."""

    in_order = True

    def __init__(self, broker: "RabbitMQBroker", source: str) -> None:
        where = broker.connections.where
        self._begin_with(broker, source, dlq_of(where, source), history_of(where, source))

    def _begin_with(self, broker: "RabbitMQBroker", source: str, dlq: str, history: str) -> None:
        self._broker, self._source = broker, source
        self._connection = broker.connections.topology().connection
        self.dlq, self.history = dlq, history
        self._keep: Keep = _nobody
        self._passes: dict[str, QueuePass] = {}
        self.total = self._begin(self.dlq, WAITING).total
        self._origins = Origins(broker.connections, source)

    def _begin(self, queue: str, states: Sequence[str]) -> QueuePass:
        self._passes[queue] = made = QueuePass(self._connection, queue, partial(self._receive, queue, states))
        return made

    def source_of(self, arrived: Arrived) -> str:
        return self._source

    def _receive(self, queue: str, states: Sequence[str], arrived: Arrived) -> None:
        brief = letters.brief(self.source_of(arrived), arrived, states)
        entry = Entry(brief.id, brief.message_id, brief.state, queue, arrived.tag, brief.identity)
        self._keep(entry, packed(arrived))

    def take_past(self, keep: Keep) -> None:
        self._keep = keep
        self._begin(self.history, DEALT_WITH).take()

    def take(self, keep: Keep, most: int | None, progress: Progress | None) -> bool:
        self._keep = keep
        return self._passes[self.dlq].take(most, progress)

    def letter(self, entry: Entry, data: bytes) -> DeadLetter:
        return self._read(entry, data).letter

    def _read(self, entry: Entry, data: bytes) -> Found:
        arrived = unpacked(data)
        return letters.read(self.source_of(arrived), arrived, DEALT_WITH if entry.place == self.history else WAITING)

    def whole(self, entry: Entry, data: bytes) -> WholeLetter:
        return whole_letter(self._source, unpacked(data))

    def store(self, chosen: Sequence[Entry], data: Callable[[Entry], bytes], state: str) -> Iterator[Sequence[Entry]]:
        """The server stores letters while the next ones are made."""
        self._check_can(state)
        make = self._again if state == "replayed" else partial(self._note, state)
        writer, parts = self._broker.connections.writer(), portions(chosen, AT_ONCE)
        unconfirmed: deque[tuple[Sequence[Entry], Batch]] = deque()
        stored = 0
        failed: Batch | None = None
        refused: PayloadError | None = None
        while True:
            while failed is None and refused is None and _has_room(unconfirmed) and (more := next(parts, None)):
                try:
                    copies = [make(entry, data(entry)) for entry in more]
                except PayloadError as error:  # what is on its way is waited for first
                    refused = error
                else:
                    unconfirmed.append((more, writer.submit(copies)))
            if not unconfirmed:
                break
            part, batch = unconfirmed.popleft()
            writer.wait(batch)
            done = [entry for number, entry in enumerate(part) if batch.stored(number)]
            failed = failed or (batch if len(done) < len(part) else None)
            stored += len(done)
            yield done
        if failed is not None:
            raise BrokerUnavailable(
                f"Taken from {self.dlq!r}: {counted(stored, 'letter')}. Still there: {len(chosen) - stored:,}. "
                f"{why_not_stored(failed)}"
            )
        if refused is not None:
            raise refused

    def _check_can(self, state: str) -> None:
        """Have what is needed to bring letters into this state."""
        if state == "replayed":
            self._origins.have_source()

    def _again(self, entry: Entry, data: bytes) -> Copy:
        return Copy("", *self._sent_back(entry, data, self.history))

    def _sent_back(self, entry: Entry, data: bytes, history: str | None) -> SentBack:
        arrived = unpacked(data)
        made = letters.sent_back(self.source_of(arrived), arrived, entry.id, history)
        if not self._origins.has(made.queue):
            raise PayloadError(
                f"Letter {entry.id!r} cannot be sent: it came from queue {made.queue!r}, which does not exist any more. Create "
                f"the queue, or discard the letter: unpoison dlq discard {entry.id}"
            )
        return made

    def _note(self, state: str, entry: Entry, data: bytes) -> Copy:
        found = self._read(entry, data)
        return Copy("", self.history, letters.written(found.letter, found.original, entry.id, state), found.letter.body)

    def let_go(self, entries: Sequence[Entry], *, stored: bool) -> None:
        for queue, taken in self._passes.items():
            if tags := [entry.handle for entry in entries if entry.place == queue]:
                taken.finish(tags, wait=not stored)

    def close(self) -> None:
        """Put back what was not let go."""
        self._keep = _nobody
        for taken in self._passes.values():
            taken.close()


def _has_room(unconfirmed: Collection[tuple[Sequence[Entry], Batch]]) -> bool:
    """Whether more letters may be on their way: they are in memory until the server has them."""
    return len(unconfirmed) < UNCONFIRMED and sum(entry.size for part, _ in unconfirmed for entry in part) < MOST_BYTES


def packed(arrived: Arrived) -> bytes:
    """A message as bytes; its tag is kept elsewhere."""
    size = len(arrived.properties).to_bytes(4, "big")
    return b"".join((b"\x01" if arrived.redelivered else b"\x00", size, arrived.properties, arrived.body))


def unpacked(data: bytes) -> Arrived:
    end = 5 + int.from_bytes(data[1:5], "big")
    return Arrived(0, data[0] == 1, data[5:end], data[end:])


def _nobody(_: Entry, __: bytes) -> None:
    raise AssertionError("nothing was asked for")
