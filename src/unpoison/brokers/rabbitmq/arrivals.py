"""Make deliveries of what has arrived. What came back uncounted, or has to wait longer, is stored again and comes once more."""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias, cast

from unpoison.brokers.rabbitmq import envelope
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.envelope import ForeignMessages, StoreAgain
from unpoison.brokers.rabbitmq.pulled_queue import PulledQueue
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.brokers.rabbitmq.writing import Copy, why_not_stored
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Delivery
from unpoison.model.wording import counted
from unpoison.port.reading import read_all
from unpoison.port.takeovers import CameBack

Holder: TypeAlias = Subscription | PulledQueue


class Arrivals:
    """For all sources of one consumer."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.came_back, self._foreign = CameBack(), ForeignMessages()

    def admitted(self, source: str, holder: Holder, arrived: Sequence[Arrived]) -> list[Delivery]:
        """The deliveries among these. The others are stored again, and let go."""
        one = partial(envelope.read, source, holder, self._foreign)
        together = partial(envelope.read_together, source, holder, one)
        found = read_all(arrived, together, one, partial(envelope.not_read, source, holder))
        again = [each for each in found if type(each) is StoreAgain]
        if not again:
            return cast("list[Delivery]", found)
        notes = self._connections.notes.needed((source, each.original.wait) for each in again)
        self._store_again(holder, [(each.arrived, self._again(source, each)) for each in again], notes)
        return [each for each in found if isinstance(each, Delivery)]

    def _again(self, source: str, each: StoreAgain) -> Copy:
        where, extra = self._connections.route(source, each.original.wait)
        return Copy(*where, envelope.copied(each.original, each.counters, extra), each.arrived.body)

    def _store_again(self, holder: Holder, again: Sequence[tuple[Arrived, Copy]], notes: Sequence[Copy]) -> None:
        batch = self._connections.store([*(copy for _, copy in again), *notes])
        stored = [message.tag for number, (message, _) in enumerate(again) if batch.stored(number)]
        holder.acknowledge(stored)
        if len(stored) < len(again):
            raise BrokerUnavailable(
                f"RabbitMQ refused copies of {counted(len(again) - len(stored), 'message')}. {why_not_stored(batch)}"
            )

    def tell_due(self) -> None:
        self.came_back.tell_due()
        self._foreign.tell_due()
