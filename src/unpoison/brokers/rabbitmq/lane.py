"""How is a message that must run alone taken, so that its start is on record?

It is pulled, one at a time, from a queue of its own, and held there while it runs. The server counts for each message how
often it was handed out and came back: in this queue that is how often a start never ended. Nobody looks into it otherwise.
"""

import threading
from collections.abc import Callable, Iterable

from unpoison.brokers.rabbitmq.connection import ANSWER_TIMEOUT, Link, Refused
from unpoison.brokers.rabbitmq.wire import Arrived, ack_frames, get_frame
from unpoison.errors import BrokerUnavailable


class Lane:
    """One channel on the queue of suspects."""

    def __init__(self, link: Link, queue: str, on_arrival: Callable[[], None], on_void: Callable[[], None]) -> None:
        self._queue, self._on_arrival, self._on_void = queue, on_arrival, on_void
        self.held: set[int] = set()
        self.alive = True
        self._answered = threading.Event()
        self._found: Arrived | None = None
        self.kept: Arrived | None = None
        """One that was taken and could not be started."""
        self._channel = link.channel(self, self._void)

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

    def finish(self, tags: Iterable[int]) -> None:
        tags = list(tags)
        self.held.difference_update(tags)
        self._channel.send(ack_frames(self._channel.number, [(tag, False) for tag in tags]))

    def close(self) -> None:
        self.alive = False
        self._channel.close()

    # Called in the connection's thread.

    def arrived(self, message: Arrived) -> None:
        self._found = message
        self.held.add(message.tag)
        self._on_arrival()
        self._answered.set()

    def nothing_there(self) -> None:
        self._answered.set()

    def drained(self) -> None:
        """Told one by one."""

    def confirmed(self, tag: int, multiple: bool, positive: bool) -> None:
        """Nothing is published on this channel."""

    def returned(self, exchange: str, routing_key: str, why: str) -> None:
        """Nothing is published on this channel."""

    def _void(self) -> None:
        if self.alive:
            self.alive = False
            if self.held:  # else nothing is lost, and others need not lose what they hold
                self._on_void()
        self._answered.set()
