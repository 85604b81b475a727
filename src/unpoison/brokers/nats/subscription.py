"""Pull the messages of one durable consumer, and no more of them than are wanted.

What is ready is asked for without waiting: one request, and the server's last answer says that there is no more. When less came
than was wanted, one request for a single message is left with the server, as a bell. Each message is ours for `ack_wait`, counted
from before we asked, and for longer while the server confirms that it heard us.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from unpoison.brokers.nats import wire
from unpoison.brokers.nats.connection import ANSWER_TIMEOUT, NO_RESPONDERS, Connection, Refused
from unpoison.brokers.nats.envelope import Arrived, place
from unpoison.brokers.nats.topology import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.port.copying.leases import Leases
from unpoison.port.copying.settling import ALL_LET_GO, LetGo, Receipt

BELL_LASTS = 15.0
FORGETS_SINCE = (2, 12)
"""Servers before that keep a request whose sender has left, and mix up the messages that they would send to it. If messages were
deleted from the stream they may also believe that there is more, and never say that there is not."""

BRIEFLY = 1.0
SILENCE = 0.5
"""Seconds after which such a server is taken to have nothing more."""
MOST_BYTES = 16 * 1024 * 1024
"""What one pull may bring at most, however many messages were asked for; or one message, if that may be larger."""

A_MOMENT = 0.02
"""Seconds within which a durable consumer hears of what was stored just now."""

ACK, NAK, PROGRESS = b"+ACK", b"-NAK", b"+WPI"
SHUTDOWN = 409


class Gone(BrokerUnavailable):
    """There is no such consumer any more."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"The consumer {name!r} cannot be pulled from: {why}.")


class Pull:
    """One request for what is ready."""

    def __init__(self, limit: int) -> None:
        self.missing = limit
        self.asked_at = time.monotonic()
        self.done = threading.Event()
        self.gone: str | None = None
        self.denied: str | None = None
        self.name = b""


class Subscription:
    """One durable consumer, as far as this process has its messages: a `Holder` of the kit."""

    def __init__(
        self, stream: str, consumer: str, ack_wait: float, connect: Callable[[], Connection], ring: Callable[[], None]
    ) -> None:
        self.stream, self.consumer = stream, consumer
        self.leases = Leases[bytes](ack_wait)
        self.held = self.leases.held
        self._connect, self._ring = connect, ring
        self.buffer: deque[Arrived] = deque()
        self._numbers = itertools.count()
        self._connection: Connection | None = None
        self._verified: Connection | None = None
        self._watched: Connection | None = None
        self._now = self._bell = b""
        self._subscribed: list[bytes] = []
        self._pull: Pull | None = None
        self._bell_until = 0.0
        self._bell_lasts = min(BELL_LASTS, ack_wait / 2)  # gone before what a killed one held is handed out again
        self._rang = threading.Event()
        self._taken_at = time.monotonic()

    @property
    def name(self) -> str:
        return f"{self.stream}.{self.consumer}"

    # Called by the consumer.

    def ask(self, limit: int) -> Pull:
        """Ask for what is ready, at most so many."""
        connection = self._connected()
        self._pull = pull = Pull(limit)
        pull.name = b"%d" % next(self._numbers)
        most = max(MOST_BYTES, 2 * connection.max_payload)
        self._request(connection, b"%s.%s" % (self._now, pull.name), {"batch": limit, "no_wait": True, "max_bytes": most})
        return pull

    def wait(self, pull: Pull) -> None:
        """Wait until everything that was ready is in the buffer."""
        is_old = self._connection is not None and self._connection.is_open and self._connection.version < FORGETS_SINCE
        in_time = pull.done.wait(SILENCE if is_old else ANSWER_TIMEOUT)
        self._pull = None
        if not in_time and not is_old:
            raise BrokerUnavailable(f"NATS did not hand out messages of {self.name!r} within {ANSWER_TIMEOUT:g} s.")
        if not in_time and not self._exists():
            raise Gone(self.name, "it was deleted")
        if pull.denied is not None:
            raise BrokerUnavailable(pull.denied)
        if pull.gone is not None:
            raise Gone(self.name, pull.gone)

    def _exists(self) -> bool:
        try:
            self.info()
        except (Gone, Refused):
            return False
        return True

    def info(self) -> Any:
        """What the server says about the consumer. Raises Gone if it was deleted."""
        try:
            return self._connect().ask(f"CONSUMER.INFO.{self.name}", what=f"looking at consumer {self.name}")
        except Refused as refused:
            if refused.code in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
                raise Gone(self.name, refused.text) from None
            raise

    def listen(self) -> None:
        """Have the next message come by itself, and ring."""
        now = time.monotonic()
        if not self.buffer and now >= self._bell_until:
            connection = self._connected()
            lasts = self._bell_lasts if connection.version >= FORGETS_SINCE else min(BRIEFLY, self._bell_lasts)
            self._bell_until = now + lasts + BRIEFLY
            self._rang.clear()
            expires = int(lasts * 1e9)
            self._request(connection, b"%s.%d" % (self._bell, next(self._numbers)), {"batch": 1, "expires": expires})

    def listen_closely(self) -> None:
        """Wait a moment for what was stored just now: the durable consumer may hear of it later than we do."""
        self.listen()
        self._rang.wait(A_MOMENT)

    @property
    def is_listening(self) -> bool:
        """Whether what becomes ready comes by itself; then nothing was ready before."""
        connection = self._connection
        return connection is not None and connection.is_open and time.monotonic() < self._bell_until

    def take(self, limit: int) -> list[Arrived]:
        """From the buffer, in the order they came. They are held from now on."""
        self._taken_at = now = time.monotonic()
        taken: list[Arrived] = []
        while self.buffer and len(taken) < limit:
            arrived = self.buffer.popleft()
            if arrived.until > now:  # else it waited here for too long, and another consumer may have it
                taken.append(arrived)
        self.leases.hold({arrived.reply: arrived.until for arrived in taken})
        return taken

    def is_left_alone(self, after: float) -> bool:
        """Whether messages wait here and none was fetched for so long."""
        return bool(self.buffer) and time.monotonic() - self._taken_at > after

    def verify(self) -> None:
        """After a new connection: a server that was killed may have forgotten its latest deliveries. It makes them again."""
        connection = self._connect()
        if connection is self._verified:
            return
        if len(self.leases):
            delivered = self.info()["delivered"]["consumer_seq"]
            self.leases.lose([reply for reply in list(self.leases.until) if place(reply).turn > delivered])
        self._verified = connection

    def send(self, replies: Sequence[bytes], word: bytes) -> None:
        """Acknowledge these, or the like. Returns once the server has confirmed the last one, and so all before it."""
        if replies:
            connection = self._connect()
            reply, future = connection.expect()
            connection.send(wire.answers(replies, word, reply))
            connection.wait(future, f"acknowledging messages of {self.name}")

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        self.acknowledge([receipt.handle for receipt in receipts])
        return ALL_LET_GO

    def acknowledge(self, replies: Sequence[bytes]) -> None:
        """Let these go."""
        self.send(replies, ACK)
        self.leases.forget(replies)

    def renew(self) -> None:
        """Keep what is held for another while."""
        asked_at = time.monotonic()
        replies = self.leases.renewable()
        self.send(replies, PROGRESS)
        self.leases.renewed(replies, asked_at)

    def give_up(self) -> None:
        """Return what is still ours at once, as from a consumer that vanished."""
        replies = self.leases.give_up()
        with suppress(UnpoisonError):
            self.send(replies, NAK)

    def cancel(self) -> None:
        """Get no more. What was on its way is in the buffer when this returns."""
        connection, bell_until = self._connection, self._bell_until
        if connection is not None and connection.is_open and connection.version < FORGETS_SINCE:
            self._rang.wait(max(0.0, bell_until - time.monotonic()))
        self._connection, self._bell_until = None, 0.0
        if connection is not None and connection.is_open and self._subscribed:
            for number in self._subscribed:
                connection.unsubscribe(number)
            connection.flush()
            for number in self._subscribed:
                connection.forget(number)

    def _connected(self) -> Connection:
        connection = self._connect()
        if connection is not self._connection:
            self._connection, self._bell_until = connection, 0.0
            self._now, self._bell = connection.new_inbox(), connection.new_inbox()
            self._subscribed = [
                connection.subscribe(self._now + b".*", self._arrived_now),
                connection.subscribe(self._bell + b".*", self._arrived_later),
            ]
            if connection is not self._watched:
                self._watched = connection
                connection.when_lost(self._lost)
                connection.when_denied(self._denied)
        return connection

    def _request(self, connection: Connection, reply: bytes, wanted: dict[str, object]) -> None:
        endpoint = f"{connection.address.api}.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}".encode()
        connection.send(wire.publication(endpoint, reply, b"", msgspec.json.encode(wanted)))

    # Called in the loop's thread.

    def _arrived_now(self, subject: bytes, reply: bytes, block: bytes, body: bytes) -> None:
        pull = self._pull
        if not reply:
            if pull is not None and subject.endswith(b"." + pull.name):
                pull.gone = _gone(block)
                pull.done.set()
            return
        asked_at = time.monotonic() if pull is None else pull.asked_at
        self.buffer.append(Arrived(reply, block, body, asked_at + self.leases.lasts))
        if pull is not None:
            pull.missing -= 1
            if pull.missing == 0:
                pull.done.set()
        else:
            self._ring()

    def _arrived_later(self, subject: bytes, reply: bytes, block: bytes, body: bytes) -> None:
        self._bell_until = 0.0
        if reply:
            self.buffer.append(Arrived(reply, block, body, time.monotonic() + self.leases.lasts))
        self._rang.set()
        self._ring()

    def _denied(self, why: str) -> None:
        """The server says no to a request by its subject, and answers nothing else."""
        if f'consumer.msg.next.{self.name.lower()}"' in why.lower():
            self._bell_until = 0.0
            if self._pull is not None:
                self._pull.denied = why
                self._pull.done.set()
            self._ring()

    def _lost(self) -> None:
        pull = self._pull
        if pull is not None:
            pull.gone = "the connection broke"
            pull.done.set()


def _gone(block: bytes) -> str | None:
    """What a status says, if it says more than that there are no messages."""
    code = wire.status(block)
    is_over = code == NO_RESPONDERS or (code == SHUTDOWN and b"eleted" in block)
    return (wire.told(block) or "it was deleted") if is_over else None
