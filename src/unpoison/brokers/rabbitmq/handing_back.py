"""Hand back what has come here and is not fetched: as copies, since a plain return would be counted against messages that never
started."""

import time
from collections.abc import Callable, Sequence

import msgspec

from unpoison.brokers.rabbitmq import envelope
from unpoison.brokers.rabbitmq.arrivals import Arrivals
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.held import Held
from unpoison.brokers.rabbitmq.names import suspects_of
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.model.message import Delivery
from unpoison.port.copying.settling import Settler

GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""


class HandingBack:
    """For all sources of one consumer. What fails is tried again with the same copies: what may be on its way is not repeated."""

    def __init__(self, connections: Connections, held: Held, arrivals: Arrivals, settler: Settler) -> None:
        self._connections, self._held, self._arrivals, self._settler = connections, held, arrivals, settler
        self._rest: dict[str, Sequence[Delivery]] = {}
        """By source: what was taken to be handed back, which failed. Nobody else knows of it."""
        self._try_after = 0.0

    def is_due(self) -> bool:
        """Whether something waits here that nobody fetches. Asked from any thread."""
        return bool(self._left_alone()) or (bool(self._rest) and time.monotonic() >= self._try_after)

    def _left_alone(self) -> list[str]:
        alive = [(source, each) for source, each in list(self._held.subscriptions.items()) if each.alive]
        return [source for source, each in alive if each.is_left_alone(GIVE_BACK_AFTER)]

    def what_is_due(self) -> None:
        self._try_after = time.monotonic() + GIVE_BACK_AFTER
        for source in {*self._rest, *self._left_alone()}:
            subscription = self._held.subscriptions.get(source)
            self._of(source, Subscription.cancel if subscription and not subscription.is_wound_down else Subscription.wind_down)

    def everything(self) -> None:
        """At the end of this consumer."""
        for source in list(self._held.subscriptions):
            self._of(source, Subscription.cancel)

    def of_paused(self, source: str) -> None:
        """The last consumer of it gets one of our own copies, if there is any, and is cancelled then."""
        self._of(source, Subscription.wind_down)
        subscription = self._held.subscriptions.get(source)
        if subscription is not None and subscription.buffer:
            self._of(source, Subscription.wind_down)
        self.suspect_of(source)

    def _of(self, source: str, stop: Callable[[Subscription], None]) -> None:
        subscription = self._held.subscriptions.get(source)
        if subscription is None or not subscription.alive:
            self._rest.pop(source, None)  # the server has it all back
            return
        stop(subscription)
        self._return_rest(source)
        arrived = subscription.take(len(subscription.buffer))
        try:
            self._rest[source] = self._arrivals.admitted(source, subscription, arrived)
        except BaseException:
            subscription.put_back(arrived)
            raise
        self._return_rest(source)
        self._held.unmark_if_idle()
        subscription.wait_until_let_go()

    def _return_rest(self, source: str) -> None:
        self._settler.give_back(self._rest.get(source, ()))
        self._rest.pop(source, None)

    def suspects(self) -> None:
        for source in list(self._held.suspects_channels):
            self.suspect_of(source)

    def suspect_of(self, source: str) -> None:
        """One that was taken and could not be started: put back as it is, it would be counted as started."""
        channel = self._held.suspects_channels.get(source)
        if channel is None or not channel.alive or channel.kept is None:
            return
        known = envelope.opened_safely(channel.kept)
        losses = known.counters.losses + max(0, known.returns)
        counters = msgspec.structs.replace(known.counters, alone=True, losses=losses)
        copy = Copy("", suspects_of(source), envelope.copied(known, counters), channel.kept.body)
        if self._connections.store([copy]).stored(0):
            channel.acknowledge([channel.kept.tag])
            channel.kept = None
