"""How is a message that must run alone taken, so that its start is on record?

It is pulled, one at a time, from a consumer of its own, and held there while it runs. The server counts for each message how
often it was handed out: in this lane that is how often it was started. Who started it is noted beside the dead letters, and
looked up if the message comes back. Nothing is decided by these notes: they are for whoever reads the letter.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from unpoison.brokers.nats import wire
from unpoison.brokers.nats.consuming import Subscription
from unpoison.brokers.nats.envelope import Arrived, place
from unpoison.brokers.nats.link import NO_RESPONDERS, Link
from unpoison.brokers.nats.looking import read
from unpoison.brokers.nats.topology import Topic
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters
from unpoison.port.serialization import UNREADABLE


class Start(msgspec.Struct, frozen=True):
    """One start of one message, alone in its consumer."""

    by: str
    at: float


class Lane:
    """The messages of one source that must run alone."""

    def __init__(self, topic: Topic, connect: Callable[[], Link], ring: Callable[[], None]) -> None:
        self._topic, self._connect = topic, connect
        self.subscription = Subscription(*topic.suspects, connect, ring)
        self._left_since: float | None = None
        self._shown: tuple[Link, bytes] | None = None
        self._showing = threading.Lock()

    def has_one(self) -> bool:
        """Whether one can be taken. One that a vanished consumer holds can be once the server has given that one up."""
        stream, name, ack_wait = self._topic.suspects
        info = self._connect().ask(f"CONSUMER.INFO.{stream}.{name}", what="looking for suspects")
        if info["num_pending"] > 0:
            return True
        if info["num_ack_pending"] <= len(self.subscription.held) or self._is_held_by_somebody():
            self._left_since = None
            return False
        now = time.monotonic()
        self._left_since = self._left_since or now
        return now - self._left_since >= ack_wait

    def take(self) -> Arrived | None:
        self._left_since = None
        self.subscription.wait(self.subscription.ask(1))
        taken = self.subscription.take(1)
        self.show()
        return taken[0] if taken else None

    def _is_held_by_somebody(self) -> bool:
        """Whoever holds one answers. If nobody is there the server says so at once."""
        link = self._connect()
        try:
            block, _ = link.request(self._topic.names.holding.encode(), b"", "asking who runs a suspect")
        except BrokerUnavailable:
            return True
        return wire.status(block) != NO_RESPONDERS

    def show(self) -> None:
        """Answer those who ask, for as long as one is held."""
        with self._showing:
            if not self.subscription.held:
                if self._shown is not None and self._shown[0].is_open:
                    self._shown[0].unsubscribe(self._shown[1])
                    self._shown[0].forget(self._shown[1])
                self._shown = None
            elif self._shown is None or not self._shown[0].is_open:
                link = self._connect()
                number = link.subscribe(self._topic.names.holding.encode(), lambda _, reply, __, ___: here(link, reply))
                self._shown = (link, number)

    def lost(self, arrived: Arrived, stamp: str, counters: Counters) -> Counters:
        """Counters of a message with the starts, since it was last stored, that never came to an end."""
        times = place(arrived.reply).delivered - 1
        latest = self._noted(stamp)[-times:] if times else []
        counters = msgspec.structs.replace(counters, alone=True, losses=counters.losses + times - len(latest))
        for start in latest:
            counters = counters.marked(start.by, start.at)
        return counters

    def subject(self, stamp: str) -> str:
        return f"{self._topic.names.starts}.{hashlib.blake2b(stamp.encode(), digest_size=12).hexdigest()}"

    def _noted(self, stamp: str) -> list[Start]:
        found = read(self._connect(), self._topic.names.dlq, self.subject(stamp))
        starts: list[Start] = []
        for each in found:
            with suppress(*UNREADABLE):
                starts.append(msgspec.json.decode(each.body, type=Start))
        return starts

    def cleared(self, stamp: str) -> None:
        """It came to an end: its starts need not be known any longer."""
        question = {"filter": self.subject(stamp)}
        self._connect().ask(f"STREAM.PURGE.{self._topic.names.dlq}", question, "removing notes of starts")
        self.show()


def here(link: Link, reply: bytes) -> None:
    """Answer one who asks whether somebody is there."""
    if reply and link.is_open:
        link.send(wire.publication(reply, b"", b"", b"here"))
