"""How do messages of one queue get here before they are asked for, and not more of them than are wanted?

A channel with consumers on it: the server pushes as many messages as their credit allows, and they wait in a buffer. The credit
follows what `fetch` asks for; when more is wanted another consumer with the difference joins, since the credit of a
running one cannot be raised. Whatever ends the channel, or a consumer on it, voids everything held here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from bezoar.brokers.rabbitmq.acks import HOLE_LASTS, Acks
from bezoar.brokers.rabbitmq.connection import Link
from bezoar.brokers.rabbitmq.wire import Arrived, ack_frames

LOOKS = 50
MAX_CREDIT = 65535


class Subscription:
    """One channel on a queue."""

    def __init__(
        self, link: Link, queue: str, ring: Callable[[], None] = lambda: None, on_arrival: Callable[[], None] = lambda: None
    ) -> None:
        self._queue, self._ring, self._on_arrival = queue, ring, on_arrival
        self.buffer: deque[Arrived] = deque()
        self.held: set[int] = set()
        self.alive = True
        self.deleted = False
        self._acks = Acks()
        self._lock = threading.Lock()
        self._consumers: list[str] = []
        self._credit = 0
        self._rung = False
        self._timer = False
        self._taken_at = time.monotonic()
        self._channel = link.channel(self, self._void)
        self._channel.on_cancel(self._void)

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        self.buffer.append(message)
        self._rung = True

    def drained(self) -> None:
        if self._rung:
            self._rung = False
            self._on_arrival()
            self._ring()

    def confirmed(self, tag: int, multiple: bool, positive: bool) -> None:
        """Nothing is published on this channel."""

    def returned(self, exchange: str, routing_key: str, why: str) -> None:
        """Nothing is published on this channel."""

    def nothing_there(self) -> None:
        """Nothing is pulled on this channel."""

    def _void(self) -> None:
        """The server took everything back: a late ack would be ignored, or end the channel."""
        self.alive = False
        self._ring()

    # Called by whoever consumes.

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    def want(self, limit: int) -> bool:
        """Have credit for so many beyond those held. True if more had to be asked for."""
        self._taken_at = time.monotonic()
        target = min(MAX_CREDIT, len(self.held) + limit)
        missing = target - self._credit
        if missing <= 0:
            return False
        if len(self._consumers) >= 16:  # each costs the server a little; grow in large steps from here on
            missing = min(MAX_CREDIT, max(missing, self._credit))
        self._consume(missing)
        return True

    def take_all(self) -> list[Arrived]:
        """Everything that is in the queue."""
        self._consume(0)
        while self.ready() and self.alive:
            pass
        self.ready()  # what the server sent before its last answer is here now
        return self.take(len(self.buffer))

    def _consume(self, credit: int) -> None:
        """Have another consumer, with this credit; 0 is without a limit."""
        self._channel.ask(lambda channel, done: channel.basic_qos(prefetch_count=credit, callback=done), "setting the credit")
        answer = self._channel.ask(
            lambda channel, done: channel.basic_consume(self._queue, _never, auto_ack=False, callback=done), "consuming"
        )
        self._consumers.append(answer.method.consumer_tag)
        self._credit += credit

    def settle_down(self, limit: int) -> None:
        """Return once what was ready on the server has arrived, up to this limit."""
        for _ in range(LOOKS):
            ready = self.ready()
            self.ready()  # what the server sent before its first answer is here before its second
            if ready == 0 or len(self.buffer) >= limit or not self.alive:
                return

    def ready(self) -> int:
        answer = self._channel.ask(
            lambda channel, done: channel.queue_declare(self._queue, passive=True, callback=done), "counting"
        )
        return int(answer.method.message_count)

    def take(self, limit: int) -> list[Arrived]:
        taken = list(islice(self.buffer, limit)) if limit < len(self.buffer) else list(self.buffer)
        self.held.update([message.tag for message in taken])  # first: at no moment may it look as if nothing were here
        for _ in taken:
            self.buffer.popleft()
        self._taken_at = time.monotonic()
        return taken

    def is_left_alone(self, after: float) -> bool:
        """Whether messages wait here and nobody has fetched any for so long."""
        return bool(self.buffer) and time.monotonic() - self._taken_at > after

    def finish(self, tags: Iterable[int]) -> None:
        """Let these go."""
        with self._lock:
            tags = list(tags)
            self.held.difference_update(tags)
            acks = self._acks.finish(tags, max(1, self._credit // 4))
            starts_timer = self._acks.is_waiting and not self._timer
            self._timer = self._timer or starts_timer
            if acks:
                self._channel.send(ack_frames(self._channel.number, acks))
        if starts_timer:
            self._channel.link.later(HOLE_LASTS, self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._timer = False
            if acks := self._acks.flush():
                self._channel.send(ack_frames(self._channel.number, acks))

    def cancel(self) -> None:
        """Get no more. What was on its way is in the buffer when this returns.

        The server forgets, and counts as returned, what it was about to send to a consumer that is cancelled; so it is given
        the time for an answer or two to send it.
        """
        if self._consumers:
            self.ready()
            self.ready()
        tags, self._consumers, self._credit = self._consumers, [], 0
        for tag in tags:
            self._channel.ask(lambda channel, done, tag=tag: channel.basic_cancel(tag, callback=done), "cancelling")  # type: ignore[misc]

    def close(self) -> None:
        self._flush()
        self._channel.close()


def _never(*_: object) -> None:
    raise AssertionError("messages go to the tap of the channel, not through the client")
