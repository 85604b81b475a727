"""What does RabbitMQ itself say about a message? Of a retry: what it said about the original, as far as a copy keeps it."""

from unpoison.brokers.rabbitmq import envelope, properties, table
from unpoison.brokers.rabbitmq.envelope import KEY, Receipt
from unpoison.brokers.rabbitmq.wire import Arrived, read_route
from unpoison.message import Delivery
from unpoison.native import Native, as_text

_UNSET = dict.fromkeys(properties.PLAIN_FIELDS)
_PERSISTENT = 2


def native(delivery: Delivery) -> Native:
    receipt: Receipt = delivery.receipt
    if receipt.route and envelope.is_plain(receipt.properties):
        known = {"message_id": delivery.id, "delivery_mode": _PERSISTENT, **_route(read_route(receipt.route))}
        return Native(properties={**_UNSET, **known})
    like, seen = envelope.opened(Arrived(receipt.tag, False, receipt.properties, delivery.body, receipt.route))
    entries = like.headers.entries
    return Native(
        next((table.native(each.value) for each in entries if each.name == KEY), None),
        tuple([(as_text(each.name), table.native(each.value)) for each in entries if envelope.is_senders(each.name)]),
        {**properties.told(receipt.properties), **_route(seen.route or (None, None))},
    )


def _route(route: tuple[str | None, str | None]) -> dict[str, str | None]:
    return {"exchange": route[0], "routing_key": route[1]}
