"""What does a consumer hold, and how do others learn that it does?

Of each source a subscription, whose buffer fills by itself, and a lane, from which suspects are pulled. What waits in a buffer
and is not fetched goes back to others after a while. A mark on the server says that something is held (presence.py).
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from unpoison.brokers.rabbitmq.connection import Link
from unpoison.brokers.rabbitmq.consuming import Subscription
from unpoison.brokers.rabbitmq.envelope import Receipt
from unpoison.brokers.rabbitmq.lane import Lane
from unpoison.brokers.rabbitmq.links import Links
from unpoison.brokers.rabbitmq.presence import Presence
from unpoison.brokers.rabbitmq.topology import busy_of, lane_of
from unpoison.errors import BrokerUnavailable, OwnershipLost, UnpoisonError
from unpoison.port.broker import Ring

GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""

TICK = 0.25
"""Seconds between two looks at what waits here unfetched."""

REMAKE_AFTER = 1.0
"""Seconds between noticing that a queue was deleted and making it anew."""


class Holding:
    """What one consumer holds. `give_back` is called, in a thread of its own, when messages wait here and nobody fetches them."""

    def __init__(self, links: Links, ring: Ring, give_back: Callable[[], None]) -> None:
        self._links, self._ring, self._give_back = links, ring, give_back
        self.subscriptions: dict[str, Subscription] = {}
        self.lanes: dict[str, Lane] = {}
        self._presences: dict[str, Presence] = {}
        self._pushing: Link | None = None
        self._deleted: dict[str, float] = {}

    def subscription(self, source: str) -> Subscription:
        """The channel of this source. Raises OwnershipLost once if one that held messages has ended."""
        old = self.subscriptions.get(source)
        if old is not None and old.alive:
            return old
        lane = self.lanes.get(source)
        if (old is not None and old.held) or (lane is not None and not lane.alive and lane.held):
            raise self.told_lost()
        if old is not None:
            old.close()
        if source in self._deleted and time.monotonic() > self._deleted.pop(source):
            remake(self._links, [source])
        if not self._links.topology().has(source):
            raise self.queue_deleted(source)
        mark = self._presence(source).mark
        made = Subscription(
            self._links.pushing(),
            source,
            self._ring,
            mark,
            self._links.part_lost,
            pauses=True,
            check=lambda: self._links.topology().check_read(source),
        )
        self.subscriptions[source] = made
        return made

    def lane(self, source: str) -> Lane:
        lane = self.lanes.get(source)
        if lane is None or not lane.alive:
            topology = self._links.topology()
            topology.ensure(source)
            lane = Lane(topology.link, lane_of(source), self._presence(source).mark_soon, self._links.part_lost)
            self.lanes[source] = lane
        return lane

    def has_kept(self, source: str) -> bool:
        """Whether a suspect is held here that could not be started."""
        lane = self.lanes.get(source)
        return lane is not None and lane.alive and lane.kept is not None

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
        own, lane = self.subscriptions.get(source), self.lanes.get(source)
        held = (0 if own is None else len(own.held)) + (0 if lane is None else len(lane.held))
        return (0 if own is None else len(own.buffer)), held

    def is_marked(self, source: str) -> bool:
        return source in self._presences and self._presences[source].is_marked

    def let_all_go(self) -> None:
        """Hold nothing any more: the server hands out again whatever was held."""
        channels: list[Subscription | Lane] = [*self.subscriptions.values(), *self.lanes.values()]
        self.subscriptions, self.lanes = {}, {}
        for channel in channels:
            with suppress(UnpoisonError):
                channel.close()

    def told_lost(self) -> OwnershipLost:
        """Told once; the next fetch starts anew."""
        self.subscriptions = {source: each for source, each in self.subscriptions.items() if each.alive}
        self.lanes = {source: each for source, each in self.lanes.items() if each.alive}
        return OwnershipLost(
            "RabbitMQ took back the messages that this consumer held: its connection or channel ended. "
            "Its results are dropped; the messages are delivered again."
        )

    def queue_deleted(self, source: str) -> BrokerUnavailable:
        self._deleted[source] = time.monotonic() + REMAKE_AFTER
        return self._links.topology().deleted(source)

    def _presence(self, source: str) -> Presence:
        link = self._links.pushing()
        if link is not self._pushing:
            self._pushing, self._presences = link, {}
            link.later(TICK, lambda: self._tick(link))
        if source not in self._presences:
            self._links.topology().ensure(source)
            self._presences[source] = Presence(link, busy_of(source))
        return self._presences[source]

    def _tick(self, link: Link) -> None:
        """Now and then, in the connection's thread: take marks away that no longer hold, and give back what nobody fetches."""
        if not link.is_open or link is not self._pushing:
            return
        link.wire.stay_alive()
        self._unmark_idle()
        if any(each.alive and each.is_left_alone(GIVE_BACK_AFTER) for each in list(self.subscriptions.values())):
            threading.Thread(target=self._give_back, name="unpoison-rabbitmq-giving-back", daemon=True).start()
        link.later(TICK, lambda: self._tick(link))

    def _unmark_idle(self) -> None:
        for source, presence in list(self._presences.items()):
            if not self._is_holding(source):
                presence.unmark()

    def _is_holding(self, source: str) -> bool:
        holders = (self.subscriptions.get(source), self.lanes.get(source))
        return any(each is not None and each.alive and (each.held or getattr(each, "buffer", ())) for each in holders)


def remake(links: Links, sources: Iterable[str]) -> None:
    """Somebody deleted a queue: it is made anew if it is ours, and not too soon.

    RabbitMQ 3.10 mixes up a quorum queue with the one of the same name that it is still deleting: channels that know the
    old one never hear of the new one.
    """
    time.sleep(REMAKE_AFTER)
    links.writer().renew()
    for source in sources:
        links.topology().renew(source)
