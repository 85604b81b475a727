"""Take messages that must run alone, with each start on record.

They are pulled, one at a time, from a durable consumer of their own, and held there while they run. The server counts how often
it handed a message out: here that is how often it was started. Notes of who started it are stored beside the dead letters.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from unpoison.brokers.nats import envelope, wire
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.connection import NO_RESPONDERS, Connection
from unpoison.brokers.nats.envelope import Arrived, place
from unpoison.brokers.nats.stream_reading import read
from unpoison.brokers.nats.subscription import Subscription
from unpoison.brokers.nats.topology import Topic
from unpoison.brokers.nats.writing import Copy
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.message import Delivery
from unpoison.port.copying.settling import LetGo, Receipt
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.reading import Unreadable, read_one
from unpoison.port.takeovers import CameBack


class Suspects:
    """The messages of one source that must run alone: a `Holder` of the kit, with its notes of starts."""

    def __init__(self, topic: Topic, client: Client, ring: Callable[[], None]) -> None:
        self._topic, self._client = topic, client
        self.subscription = Subscription(*topic.suspects, client.connection, ring)
        self.held, self.renew = self.subscription.held, self.subscription.renew
        self._left_since: float | None = None
        self._shown: tuple[Connection, bytes] | None = None
        self._showing = threading.Lock()

    def has_one(self) -> bool:
        """Whether one can be taken. One that a vanished consumer holds can be once the server has given that consumer up."""
        stream, name, ack_wait = self._topic.suspects
        info = self._client.connection().ask(f"CONSUMER.INFO.{stream}.{name}", what="looking for suspects")
        if info["num_pending"] > 0:
            return True
        if info["num_ack_pending"] <= len(self.subscription.leases) or self._is_held_by_another():
            self._left_since = None
            return False
        now = time.monotonic()
        self._left_since = self._left_since or now
        return now - self._left_since >= ack_wait

    def take(self, by: str, came_back: CameBack) -> Delivery | None:
        """The next one, for the consumer `by`; its start is on record."""
        self._left_since = None
        self.subscription.wait(self.subscription.ask(1))
        taken = self.subscription.take(1)
        self.show()
        if not taken:
            return None
        (arrived,) = taken
        found = read_one(arrived, self._read, partial(envelope.not_read, self._topic.names.source, self))
        if isinstance(found, Unreadable):
            return found  # it is not started
        # Put aside it comes back, with a start counted that never was.
        return start_alone(found, by, self, came_back, partial(self.subscription.leases.forget, [arrived.reply]))

    def _read(self, arrived: Arrived) -> Suspect:
        where = place(arrived.reply)
        seen = envelope.look(arrived.block, where)
        receipt = Receipt(self, arrived.reply, arrived.block)
        delivery = Delivery(receipt, self._topic.names.source, seen.id, arrived.body, seen.key, seen.headers, seen.counters)
        return Suspect(delivery, seen.stamp, where.delivered - 1)

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        outcome = self.subscription.let_go(receipts)
        for receipt in receipts:
            with suppress(UnpoisonError):  # a note more or less changes nothing
                self._clear(envelope.look_safely(receipt.envelope, place(receipt.handle)).stamp)
        return outcome

    # Other consumers ask whether one is held.

    def _is_held_by_another(self) -> bool:
        """The consumer that holds one answers. If there is none the server says so at once."""
        try:
            question = self._topic.names.holding.encode()
            block, _ = self._client.connection().request(question, b"", "asking who runs a suspect")
        except BrokerUnavailable:
            return True
        return wire.status(block) != NO_RESPONDERS

    def show(self) -> None:
        """Answer consumers that ask, for as long as one is held."""
        with self._showing:
            if not len(self.subscription.leases):
                if self._shown is not None and self._shown[0].is_open:
                    self._shown[0].unsubscribe(self._shown[1])
                    self._shown[0].forget(self._shown[1])
                self._shown = None
            elif self._shown is None or not self._shown[0].is_open:
                connection = self._client.connection()
                question = self._topic.names.holding.encode()
                number = connection.subscribe(question, lambda _, reply, __, ___: connection.answer(reply, b"here"))
                self._shown = (connection, number)

    # Notes of starts.

    def _subject(self, stamp: str) -> str:
        return f"{self._topic.names.starts}.{hashlib.blake2b(stamp.encode(), digest_size=12).hexdigest()}"

    def store(self, stamp: str, note: bytes) -> None:
        if refused := self._client.store([Copy(self._subject(stamp), b"", note)]):
            raise BrokerUnavailable(f"NATS refuses to note a start: {refused[0].text}.")

    def find(self, stamp: str) -> list[bytes]:
        return [each.body for each in read(self._client.connection(), self._topic.names.dlq, self._subject(stamp))]

    def _clear(self, stamp: str) -> None:
        """It came to an end: its starts need not be known any longer."""
        question = {"filter": self._subject(stamp)}
        self._client.connection().ask(f"STREAM.PURGE.{self._topic.names.dlq}", question, "removing notes of starts")
        self.show()
