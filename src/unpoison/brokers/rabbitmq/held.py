"""Keep what a consumer holds, and let other consumers know that it holds something.

For each source there is a subscription, whose buffer fills by itself, and a channel from which suspects are pulled; a source that
is paused has another one from which its messages are pulled. What waits in a buffer and is not fetched goes back to others after
a while. Suspects wait in `<queue>.suspects`: the server counts for each message how often it was handed out and came back, and
there that is how often a start never ended, since nothing else takes messages from that queue. Who started one is noted in
`<queue>.starts`.

The server does not tell whether messages of a source are held by anyone. So a consumer that holds some is a consumer of the empty
queue `<queue>.busy` too: the server tells everyone how many consumers a queue has, and forgets those whose connection ends. A run
that ends when nothing is left does not end while another consumer is at work, on whatever host.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.errors import IN_USE, Refused
from unpoison.brokers.rabbitmq.names import busy_of, starts_of, suspects_of
from unpoison.brokers.rabbitmq.pulled_queue import PulledQueue
from unpoison.brokers.rabbitmq.queue_pass import taken_and_put_back
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.wire import cancel_frame, consume_frame
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import OwnershipLost, UnpoisonError
from unpoison.port.broker import Ring
from unpoison.port.copying.suspects import read_starts

TICK = 0.25
"""Seconds between two looks at what waits here unfetched."""

LOOKS, LOOK_AGAIN = 10, 0.02
"""How often notes of starts are looked for, and the seconds in between."""


class BusyMark:
    """The mark of one connection on one source. Only the connection's thread changes it."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._queue = queue
        self._channel = connection.channel()
        self.is_marked = False

    def mark(self) -> None:
        if not self.is_marked:
            self.is_marked = True
            self._channel.send(consume_frame(self._channel.number, self._queue, "busy"))

    def mark_soon(self) -> None:
        """As `mark`, from any thread."""
        self._channel.connection.post(self.mark)

    def unmark(self) -> None:
        if self.is_marked:
            self.is_marked = False
            self._channel.send(cancel_frame(self._channel.number, "busy"))


class Held:
    """What one consumer holds. `look` is called now and then, in the connection's thread; `on_lost` when the loss of messages is
    reported."""

    def __init__(self, connections: Connections, ring: Ring, look: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._connections, self._ring, self._look, self._on_lost = connections, ring, look, on_lost
        self.subscriptions: dict[str, Subscription] = {}
        self.suspects_channels: dict[str, PulledQueue] = {}
        self.pulled_channels: dict[str, PulledQueue] = {}
        self._marks: dict[str, BusyMark] = {}
        self._pushing: Connection | None = None

    def subscription(self, source: str) -> Subscription:
        """The channel of this source. Raises OwnershipLost once if one that held messages has ended."""
        old = self.subscriptions.get(source)
        if old is not None and old.alive:
            return old
        ended = [each for each in self._pulling(source) if not each.alive]
        if (old is not None and old.tags) or any(each.tags for each in ended):
            raise self.ownership_lost()
        if old is not None:
            old.close()
        self._connections.require(source)
        mark, lost = self._mark(source).mark, self._connections.part_lost
        pushing, check = self._connections.pushing(), lambda: self._connections.topology().check_read(source)
        self.subscriptions[source] = made = Subscription(pushing, source, self._ring, mark, lost, check)
        return made

    def suspects_channel(self, source: str) -> PulledQueue:
        return self._pulled(self.suspects_channels, source, suspects_of(source))

    def pulled_channel(self, source: str) -> PulledQueue:
        """From which its messages are taken one by one."""
        return self._pulled(self.pulled_channels, source, source)

    def _pulled(self, channels: dict[str, PulledQueue], source: str, queue: str) -> PulledQueue:
        if source not in channels or not channels[source].alive:
            topology = self._connections.topology()
            topology.ensure(source)
            mark_soon, lost = self._mark(source).mark_soon, self._connections.part_lost
            channels[source] = PulledQueue(topology.connection, queue, mark_soon, lost)
        return channels[source]

    def has_kept(self, channels: dict[str, PulledQueue], source: str) -> bool:
        """Whether a message is held on this channel of the source that could not be started."""
        return source in channels and channels[source].alive and channels[source].kept is not None

    def _pulling(self, source: str) -> list[PulledQueue]:
        return [channels[source] for channels in (self.suspects_channels, self.pulled_channels) if source in channels]

    def unmark_if_idle(self) -> None:
        """Take all marks away at once if nothing is held any more; else `_tick` does it for each source."""
        if self._pushing is not None and not any(map(self._is_holding, self._marks)):
            self._pushing.post(self._unmark_idle)

    def count(self, source: str) -> tuple[int, int]:
        """How many messages wait in the buffer here, and how many are held beyond that."""
        own = self.subscriptions.get(source)
        held = (0 if own is None else len(own.tags)) + sum(len(each.tags) for each in self._pulling(source))
        return (0 if own is None else len(own.buffer)), held

    def is_marked(self, source: str) -> bool:
        return source in self._marks and self._marks[source].is_marked

    def let_all_go(self) -> None:
        """Hold nothing any more: the server hands out again all that was held."""
        pulled = [*self.suspects_channels.values(), *self.pulled_channels.values()]
        channels: list[Subscription | PulledQueue] = [*self.subscriptions.values(), *pulled]
        self.subscriptions, self.suspects_channels, self.pulled_channels = {}, {}, {}
        for channel in channels:
            with suppress(UnpoisonError):
                channel.close()

    def ownership_lost(self) -> OwnershipLost:
        """The error for messages that the server took back. It is raised once; the next fetch begins with new channels."""
        self.subscriptions = {source: each for source, each in self.subscriptions.items() if each.alive}
        self.suspects_channels = {source: each for source, each in self.suspects_channels.items() if each.alive}
        self.pulled_channels = {source: each for source, each in self.pulled_channels.items() if each.alive}
        self._on_lost()
        return OwnershipLost(
            "RabbitMQ took back the messages that this consumer held: its connection or channel ended. "
            "Its results are dropped; the messages are delivered again."
        )

    def _mark(self, source: str) -> BusyMark:
        connection = self._connections.pushing()
        if connection is not self._pushing:
            self._pushing, self._marks = connection, {}
            connection.later(TICK, lambda: self._tick(connection))
        if source not in self._marks:
            self._connections.topology().ensure(source)
            self._marks[source] = BusyMark(connection, busy_of(source))
        return self._marks[source]

    def _tick(self, connection: Connection) -> None:
        """Now and then, in the connection's thread: take marks away that no longer hold, and look what nobody fetches."""
        if not connection.is_open or connection is not self._pushing:
            return
        connection.wire.stay_alive()
        self._unmark_idle()
        self._look()
        connection.later(TICK, lambda: self._tick(connection))

    def _unmark_idle(self) -> None:
        for source, mark in list(self._marks.items()):
            if not self._is_holding(source):
                mark.unmark()

    def _is_holding(self, source: str) -> bool:
        own = self.subscriptions.get(source)
        return any(each.alive and each.is_holding for each in (*self._pulling(source), *([own] if own else ())))


class StartNotes:
    """The notes about starts of one source's suspects. `vanished` starts of the message that is looked for never ended."""

    def __init__(self, connections: Connections, source: str, vanished: int) -> None:
        self._connections, self._queue, self._vanished = connections, starts_of(source), vanished

    def store(self, stamp: str, note: bytes) -> None:
        self._connections.store([Copy("", self._queue, properties.write(None), note)])

    def find(self, stamp: str) -> Iterable[bytes]:
        """Another consumer may have all notes in hand for a moment, so they are looked for several times."""
        notes: list[bytes] = []
        for tries in range(LOOKS):
            if tries:
                time.sleep(LOOK_AGAIN)
            try:
                found = taken_and_put_back(self._connections.topology().connection, self._queue)
            except Refused as refused:
                if IN_USE in refused.text:
                    continue
                return []  # no such queue, or no right to read it: the count of the server holds without notes
            notes = [message.body for message in found]
            if len(read_starts(notes, stamp)) >= self._vanished:
                break
        return notes
