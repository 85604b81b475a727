"""Take messages that must run alone, one at a time, from the queue `<queue>.suspects`.

A message is held there while it runs. The server counts for each message how often it was handed out and came back: in this queue
that is how often a start never ended, since nobody looks into it otherwise. Who started it is noted in `<queue>.starts`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.connection import ANSWER_TIMEOUT, Connection
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.errors import IN_USE, Refused
from unpoison.brokers.rabbitmq.names import starts_of
from unpoison.brokers.rabbitmq.queue_pass import taken_and_put_back
from unpoison.brokers.rabbitmq.wire import Arrived, Tap, ack_frames, get_frame
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import BrokerUnavailable
from unpoison.port.copying.settling import ALL_LET_GO, LetGo, Receipt
from unpoison.port.copying.suspects import read_starts

LOOKS, LOOK_AGAIN = 10, 0.02
"""How often notes are looked for, and the seconds in between."""


class SuspectsChannel(Tap):
    """One channel on the queue of suspects."""

    def __init__(self, connection: Connection, queue: str, on_arrival: Callable[[], None], on_void: Callable[[], None]) -> None:
        self._queue, self._on_arrival, self._on_void = queue, on_arrival, on_void
        self.tags: set[int] = set()
        self.alive = True
        self._answered = threading.Event()
        self._found: Arrived | None = None
        self.kept: Arrived | None = None
        """One that was taken and could not be started."""
        self._channel = connection.channel(self, self._void)

    def take(self) -> Arrived | None:
        """The next one, if there is one."""
        if self.kept is not None and self.alive:
            taken, self.kept = self.kept, None
            return taken
        self._found = None
        self._answered.clear()
        self._channel.send(get_frame(self._channel.number, self._queue))
        if not self._answered.wait(ANSWER_TIMEOUT) or not self.alive:
            refused = self._channel.closed
            self.close()
            if isinstance(refused, Refused) and refused.code:
                raise refused
            raise BrokerUnavailable(f"RabbitMQ did not hand out a message of {self._queue!r}.")
        return self._found

    def keep(self, arrived: Arrived) -> None:
        """Hand this one out again at the next call. Put back, it would be counted as started."""
        self.kept = arrived

    def held(self, receipts: Sequence[Receipt]) -> Sequence[Receipt]:
        return [receipt for receipt in receipts if receipt.handle in self.tags] if self.alive else ()

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        self.acknowledge([receipt.handle for receipt in receipts])
        return ALL_LET_GO

    def acknowledge(self, tags: Sequence[int]) -> None:
        self.tags.difference_update(tags)
        self._channel.send(ack_frames(self._channel.number, [(tag, False) for tag in tags]))

    def close(self) -> None:
        self.alive = False
        self._channel.close()

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        self._found = message
        self.tags.add(message.tag)
        self._on_arrival()
        self._answered.set()

    def nothing_there(self) -> None:
        self._answered.set()

    def _void(self) -> None:
        if self.alive:
            self.alive = False
            if self.tags:  # else nothing is lost, and what is held elsewhere need not be lost either
                self._on_void()
        self._answered.set()


class StartNotes:
    """The notes about starts of one source's suspects. `vanished` starts of the message that is looked for never ended."""

    def __init__(self, connections: Connections, source: str, vanished: int) -> None:
        self._connections, self._queue, self._vanished = connections, starts_of(source), vanished

    def store(self, stamp: str, note: bytes) -> None:
        self._connections.store([Copy("", self._queue, properties.write(None, []), note)])

    def find(self, stamp: str) -> Iterable[bytes]:
        """Another consumer may have all notes in hand for a moment, so they are looked for several times."""
        notes: list[bytes] = []
        for tries in range(LOOKS):
            if tries:
                time.sleep(LOOK_AGAIN)
            try:
                found = taken_and_put_back(self._connections.topology().connection, self._queue, exclusive=True)
            except Refused as refused:
                if IN_USE in refused.text:
                    continue
                return []  # no such queue, or no right to read it: the count of the server holds without notes
            notes = [message.body for message in found]
            if len(read_starts(notes, stamp)) >= self._vanished:
                break
        return notes
