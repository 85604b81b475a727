"""What does RabbitMQ itself say about a message? Of a retry: what it said about the original, as far as a copy keeps it."""

from unpoison.brokers.rabbitmq import envelope, properties, table
from unpoison.brokers.rabbitmq.envelope import ATTEMPTS, EXPIRATION, KEY, LONG_ID, SENDERS_ATTEMPTS, STAMP, Receipt
from unpoison.brokers.rabbitmq.wire import read_route
from unpoison.model.message import Delivery, Native, as_text

_UNSET = dict.fromkeys(properties.PLAIN_FIELDS)
_PERSISTENT = 2


def native(delivery: Delivery) -> Native:
    receipt: Receipt = delivery.receipt
    if receipt.route and envelope.is_plain(receipt.properties):
        known = {"message_id": delivery.id, "delivery_mode": _PERSISTENT, **_route(read_route(receipt.route))}
        return Native(properties={**_UNSET, **known})
    told, (entries, _) = properties.told(receipt.properties)
    found = {each.name: each.value for each in entries}
    if LONG_ID in found:
        told["message_id"] = delivery.id
    if EXPIRATION in found:
        told["expiration"] = table.text(found[EXPIRATION])
    headers = [(as_text(name), table.native(value)) for name, value in entries if envelope.is_senders(name)]
    if attempts := found.get(SENDERS_ATTEMPTS if STAMP in found else ATTEMPTS):
        headers.append((ATTEMPTS.decode(), table.native(attempts)))
    return Native(
        table.native(found[KEY]) if KEY in found else None,
        tuple(headers),
        {**told, **_route(envelope.route_of(receipt.route, found) or (None, None))},
    )


def _route(route: tuple[str | None, str | None]) -> dict[str, str | None]:
    return {"exchange": route[0], "routing_key": route[1]}
