"""Ask for one message of a queue at a time. It is held while it runs."""

import threading
from collections.abc import Callable, Sequence

from unpoison.brokers.rabbitmq.connection import ANSWER_TIMEOUT, Connection
from unpoison.brokers.rabbitmq.wire import Arrived, Tap, ack_frames, get_frame
from unpoison.errors import BrokerUnavailable
from unpoison.port.copying.settling import ALL_LET_GO, LetGo, Receipt


class PulledQueue(Tap):
    """A channel of its own: what the server refuses on it costs nothing that is held elsewhere."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        on_arrival: Callable[[], None] = lambda: None,
        on_void: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue, self._on_arrival, self._on_void = queue, on_arrival, on_void
        self.tags: set[int] = set()
        self.alive = True
        self._answered = threading.Event()
        self._found: Arrived | None = None
        self.kept: Arrived | None = None
        """One that was taken and could not be started: handed out again at the next call. Put back, it would be counted as
        started."""
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
            if refused is not None and refused.code:
                raise refused
            raise BrokerUnavailable(f"RabbitMQ did not say whether there are messages in {self._queue!r}.")
        return self._found

    def keep(self, arrived: Arrived) -> None:
        self.kept = arrived

    @property
    def is_holding(self) -> bool:
        return bool(self.tags)

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
