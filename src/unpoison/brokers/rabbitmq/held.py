"""What does a consumer hold, and how do others learn that it does?

Of each source a subscription, whose buffer fills by itself, and a channel from which suspects are pulled. What waits in a buffer
and is not fetched goes back to others after a while. A mark on the server says that something is held.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.envelope import Receipt
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.suspects import SuspectsChannel
from unpoison.brokers.rabbitmq.topology import busy_of, suspects_of
from unpoison.brokers.rabbitmq.wire import cancel_frame, consume_frame
from unpoison.errors import BrokerUnavailable, OwnershipLost, UnpoisonError
from unpoison.port.broker import Ring

# How do others know that somebody holds messages of a source, when the server does not tell?
#
# Whoever holds some, or has some waiting in its buffer, is a consumer of the empty queue `<queue>.busy`; the server tells
# everybody how many consumers a queue has, and forgets those whose connection ends. So a run that is to end when nothing is
# left does not end while another consumer is at work, on whatever host.


class BusyMark:
    """The mark of one connection on one source. Only the connection's thread changes it."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection, self._queue = connection, queue
        self._channel = connection.channel()
        self.is_marked = False

    def mark(self) -> None:
        """Seen as busy from now on."""
        if not self.is_marked:
            self.is_marked = True
            self._channel.send(consume_frame(self._channel.number, self._queue, "busy"))

    def mark_soon(self) -> None:
        """The same, for whoever is not in the connection's thread."""
        self._connection.post(self.mark)

    def unmark(self) -> None:
        """Seen as idle from now on."""
        if self.is_marked:
            self.is_marked = False
            self._channel.send(cancel_frame(self._channel.number, "busy"))


# (the part that gave this module its question)


GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""

TICK = 0.25
"""Seconds between two looks at what waits here unfetched."""

REMAKE_AFTER = 1.0
"""Seconds between noticing that a queue was deleted and making it anew."""


class Held:
    """What one consumer holds. `give_back` is called, in a thread of its own, when messages wait here and nobody fetches them."""

    def __init__(self, connections: Connections, ring: Ring, give_back: Callable[[], None]) -> None:
        self._connections, self._ring, self._give_back = connections, ring, give_back
        self.subscriptions: dict[str, Subscription] = {}
        self.suspects_channels: dict[str, SuspectsChannel] = {}
        self._presences: dict[str, BusyMark] = {}
        self._pushing: Connection | None = None
        self._deleted: dict[str, float] = {}

    def subscription(self, source: str) -> Subscription:
        """The channel of this source. Raises OwnershipLost once if one that held messages has ended."""
        old = self.subscriptions.get(source)
        if old is not None and old.alive:
            return old
        suspects = self.suspects_channels.get(source)
        if (old is not None and old.held) or (suspects is not None and not suspects.alive and suspects.held):
            raise self.told_lost()
        if old is not None:
            old.close()
        if source in self._deleted and time.monotonic() > self._deleted.pop(source):
            create_again(self._connections, [source])
        if not self._connections.topology().has(source):
            raise self.queue_deleted(source)
        mark = self._presence(source).mark
        made = Subscription(
            self._connections.pushing(),
            source,
            self._ring,
            mark,
            self._connections.part_lost,
            pauses=True,
            check=lambda: self._connections.topology().check_read(source),
        )
        self.subscriptions[source] = made
        return made

    def suspects_channel(self, source: str) -> SuspectsChannel:
        suspects = self.suspects_channels.get(source)
        if suspects is None or not suspects.alive:
            topology = self._connections.topology()
            topology.ensure(source)
            suspects = SuspectsChannel(
                topology.connection, suspects_of(source), self._presence(source).mark_soon, self._connections.part_lost
            )
            self.suspects_channels[source] = suspects
        return suspects

    def has_kept(self, source: str) -> bool:
        """Whether a suspect is held here that could not be started."""
        suspects = self.suspects_channels.get(source)
        return suspects is not None and suspects.alive and suspects.kept is not None

    def holds(self, receipt: Receipt) -> bool:
        return receipt.holder.alive and receipt.tag in receipt.holder.held

    def finish(self, receipts: Iterable[Receipt]) -> None:
        """Let these go."""
        by_holder: dict[int, list[Receipt]] = {}
        for receipt in receipts:
            by_holder.setdefault(id(receipt.holder), []).append(receipt)
        for group in by_holder.values():
            group[0].holder.finish([receipt.tag for receipt in group])
        if self._pushing is not None and not any(map(self._is_holding, self._presences)):
            self._pushing.post(self._unmark_idle)

    def count(self, source: str) -> tuple[int, int]:
        """How many messages wait in the buffer here, and how many are held beyond that."""
        own, suspects = self.subscriptions.get(source), self.suspects_channels.get(source)
        held = (0 if own is None else len(own.held)) + (0 if suspects is None else len(suspects.held))
        return (0 if own is None else len(own.buffer)), held

    def is_marked(self, source: str) -> bool:
        return source in self._presences and self._presences[source].is_marked

    def let_all_go(self) -> None:
        """Hold nothing any more: the server hands out again whatever was held."""
        channels: list[Subscription | SuspectsChannel] = [*self.subscriptions.values(), *self.suspects_channels.values()]
        self.subscriptions, self.suspects_channels = {}, {}
        for channel in channels:
            with suppress(UnpoisonError):
                channel.close()

    def told_lost(self) -> OwnershipLost:
        """Told once; the next fetch starts anew."""
        self.subscriptions = {source: each for source, each in self.subscriptions.items() if each.alive}
        self.suspects_channels = {source: each for source, each in self.suspects_channels.items() if each.alive}
        return OwnershipLost(
            "RabbitMQ took back the messages that this consumer held: its connection or channel ended. "
            "Its results are dropped; the messages are delivered again."
        )

    def queue_deleted(self, source: str) -> BrokerUnavailable:
        self._deleted[source] = time.monotonic() + REMAKE_AFTER
        return self._connections.topology().deleted(source)

    def _presence(self, source: str) -> BusyMark:
        connection = self._connections.pushing()
        if connection is not self._pushing:
            self._pushing, self._presences = connection, {}
            connection.later(TICK, lambda: self._tick(connection))
        if source not in self._presences:
            self._connections.topology().ensure(source)
            self._presences[source] = BusyMark(connection, busy_of(source))
        return self._presences[source]

    def _tick(self, connection: Connection) -> None:
        """Now and then, in the connection's thread: take marks away that no longer hold, and give back what nobody fetches."""
        if not connection.is_open or connection is not self._pushing:
            return
        connection.wire.stay_alive()
        self._unmark_idle()
        if any(each.alive and each.is_left_alone(GIVE_BACK_AFTER) for each in list(self.subscriptions.values())):
            threading.Thread(target=self._give_back, name="unpoison-rabbitmq-giving-back", daemon=True).start()
        connection.later(TICK, lambda: self._tick(connection))

    def _unmark_idle(self) -> None:
        for source, presence in list(self._presences.items()):
            if not self._is_holding(source):
                presence.unmark()

    def _is_holding(self, source: str) -> bool:
        holders = (self.subscriptions.get(source), self.suspects_channels.get(source))
        return any(each is not None and each.alive and (each.held or getattr(each, "buffer", ())) for each in holders)


def create_again(connections: Connections, sources: Iterable[str]) -> None:
    """Somebody deleted a queue: it is made anew if it is ours, and not too soon.

    RabbitMQ 3.10 mixes up a quorum queue with the one of the same name that it is still deleting: channels that know the
    old one never hear of the new one.
    """
    time.sleep(REMAKE_AFTER)
    connections.writer().renew()
    for source in sources:
        connections.topology().renew(source)
