"""Fetch from a source that is paused: no consumer asks for messages ahead, so each one that is wanted is pulled."""

import time
from collections.abc import Sequence

from unpoison.brokers.rabbitmq.arrivals import Arrivals
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.errors import LOCKED, Refused
from unpoison.brokers.rabbitmq.held import Held
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.errors import UnpoisonError
from unpoison.model.message import Delivery

SEARCH = 1.0
"""Seconds for which one fetch looks for a message that may start: those that a killed server has flagged are stored again."""


class PausedSources:
    """Those of one consumer."""

    def __init__(self, connections: Connections, held: Held, arrivals: Arrivals) -> None:
        self._connections, self._held, self._arrivals = connections, held, arrivals
        self._names: set[str] = set()
        self._pushing: set[str] = set()
        """From their queues nothing can be pulled."""

    def add(self, source: str) -> None:
        self._names.add(source)

    def discard(self, source: str) -> None:
        self._names.discard(source)

    def clear(self) -> None:
        self._names.clear()

    def has(self, source: str) -> bool:
        """Also while a message is left here that was pulled and could not be fetched."""
        return source in self._names or self._held.has_kept(self._held.pulled_channels, source)

    def fetch(self, source: str, subscription: Subscription, limit: int) -> Sequence[Delivery]:
        """At most so many, and nothing more is on its way here when this returns."""
        found = self._arrived(source, subscription, limit) if subscription.buffer else []
        ends = time.monotonic() + SEARCH
        while len(found) < limit and time.monotonic() < ends:
            try:
                pulled = self._pulled(source, subscription)
            except UnpoisonError:
                if found:  # they are held: the next fetch meets the trouble again
                    break
                raise
            if pulled is None:
                break
            found += pulled
        return found

    def _arrived(self, source: str, subscription: Subscription, limit: int) -> list[Delivery]:
        """What the last consumer of it has brought."""
        subscription.wind_down()
        arrived = subscription.take(limit)
        self._arrivals.came_back.note(source, sum([message.redelivered for message in arrived]))
        try:
            return self._arrivals.admitted(source, subscription, arrived)
        except BaseException:
            subscription.put_back(arrived)
            raise

    def _pulled(self, source: str, subscription: Subscription) -> list[Delivery] | None:
        """The next message; none if it was stored again. None if there is no next one."""
        if source in self._pushing:
            subscription.push_one()
            return self._arrived(source, subscription, 1) or None
        channel = self._held.pulled_channel(source)
        if channel.is_holding:
            self._connections.topology().check_read(source)  # a refusal would end the channel, and what is held would come back
        try:
            arrived = channel.take()
        except Refused as refused:
            if refused.code != LOCKED:
                raise
            self._pushing.add(source)  # a quorum queue with a single active consumer
            return self._pulled(source, subscription)
        if arrived is None:
            return None
        self._arrivals.came_back.note(source, int(arrived.redelivered))
        try:
            return self._arrivals.admitted(source, channel, [arrived])
        except BaseException:
            channel.keep(arrived)
            raise
