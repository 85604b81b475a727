"""How does a message that arrived become a delivery, and what if it did not come by our own ways?

A dead letter that a shovel, or the management page, moved back into its source: it starts again as a replay. And a header
`x-delivery-attempts` of the sender's own: other programs count with that name too, so it counts only beside a stamp of ours.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unpoison.brokers.rabbitmq import envelope
from unpoison.brokers.rabbitmq.envelope import FLAGGED, Envelope, Receipt
from unpoison.brokers.rabbitmq.properties import Properties
from unpoison.brokers.rabbitmq.subscription import Subscription
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.model.message import Counters, Delivery
from unpoison.port import serialization
from unpoison.port.takeovers import CameBack

log = logging.getLogger("unpoison")


class ForeignMessages:
    """Says what was seen: letters that were moved back once a second, a strange header once for a source."""

    def __init__(self) -> None:
        self._moved = CameBack(tell=serialization.tell)
        self._told: set[str] = set()

    def counters(self, source: str, seen: Envelope) -> Counters:
        """Those that a message in its source starts with."""
        if seen.stamp is None and seen.senders_attempts is not None and source not in self._told:
            self._told.add(source)
            self._tell(source, seen)
        if seen.letter is None:
            return seen.counters
        self._moved.note(source)
        return serialization.restarted(seen.letter, seen.counters.replays)

    def tell_due(self) -> None:
        self._moved.tell_due()

    def _tell(self, source: str, seen: Envelope) -> None:
        log.warning(
            "Source %r: message %r came with a header x-delivery-attempts: %s that unpoison did not write. The handler sees it; "
            "it is not counted, so the message has all its attempts. Said once for this source.",
            source,
            seen.id,
            seen.headers["x-delivery-attempts"],
            extra={"event": "foreign-attempts", "source": source, "message_id": seen.id},
        )


class StoreAgain(NamedTuple):
    """A message that is to be stored anew."""

    arrived: Arrived
    like: Properties
    seen: Envelope
    counters: Counters


def read_together(
    source: str, subscription: Subscription, one: Callable[[Arrived], Delivery | StoreAgain], arrived: Sequence[Arrived]
) -> list[Delivery | StoreAgain]:
    plain, is_plain = envelope.plain, envelope.is_plain
    return [
        plain(source, message, subscription) if not message.redelivered and is_plain(message.properties) else one(message)
        for message in arrived
    ]


def read(source: str, subscription: Subscription, foreign: ForeignMessages, message: Arrived) -> Delivery | StoreAgain:
    like, seen = envelope.opened(message)
    counters = _returned(foreign.counters(source, seen), seen.returns)
    if seen.wait > 0 or (seen.returns == FLAGGED and seen.counters.vanished == 0 and not seen.counters.alone):
        return StoreAgain(message, like, seen, counters)
    receipt = Receipt(subscription, message.tag, message.properties, message.route)
    return Delivery(receipt, source, seen.id, message.body, seen.key, seen.headers, counters)


def _returned(counters: Counters, returns: int) -> Counters:
    """As they are after a message came back so often."""
    if returns == 0:
        return counters
    for _ in range(1 if returns == FLAGGED else min(2, returns)):
        counters = counters.returned()
    return counters
