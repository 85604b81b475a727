"""Read what travels beside a message's body, make a Delivery of it, and write it for copies.

The header `x-unpoison-counters` holds the counters as JSON, `x-delivery-attempts` the attempts for other tools;
`x-unpoison-stamp` names the message for good (its id is the sender's and need not be unique). Headers of the broker are never
copied: a copied delivery count is shown as real, and a copied x-death makes older servers drop the message as a loop.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.properties import Header, Properties, header, text, text_of
from unpoison.brokers.rabbitmq.wire import Arrived, read_route
from unpoison.model.events import fields
from unpoison.model.message import MOST_MOMENT, NO_HEADERS, UNTRIED, Counters, Delivery, Native, Outgoing, as_text
from unpoison.port import serialization
from unpoison.port.copying import settling
from unpoison.port.copying.ids import unique
from unpoison.port.reading import Unreadable, read_one, unreadable
from unpoison.port.serialization import counters_or_untried, counters_text
from unpoison.port.takeovers import CameBack

STAMP, COUNTERS, ATTEMPTS = (name.encode() for name in (serialization.STAMP, serialization.COUNTERS, serialization.ATTEMPTS))
KEY, REST = b"x-unpoison-key", b"x-unpoison-wait"
EXCHANGE, ROUTING_KEY = b"x-unpoison-exchange", b"x-unpoison-routing-key"
"""What the original was published with: a copy has a route of its own."""
EXPIRATION = b"x-unpoison-expiration"
"""The one that the sender set, in milliseconds. A copy does not expire."""
SENDERS_ATTEMPTS = b"x-unpoison-senders-attempts"
"""What the sender wrote as `x-delivery-attempts`: ours takes its place on a copy."""
RECORD, LETTER, STATE = (name.encode() for name in (serialization.LETTER, serialization.LETTER_ID, serialization.STATE))
LONG_ID = b"x-unpoison-id"
"""For an id of more than the 255 bytes that the property can hold."""
DIGIT = b"unpoison-d"
"""Headers that lead a delayed message through the delay queues; without x-, since a headers exchange ignores those."""
BROKERS = (b"x-death", b"x-first-death-", b"x-last-death-", b"x-delivery-count", b"x-acquired-count", b"x-opt-")
_NOT_SENDERS = (*BROKERS, ATTEMPTS, b"x-unpoison-", DIGIT)
ROUTING = (b"CC", b"BCC")
"""A copy with one of these would go to those queues too, a second time."""
FLAGGED = -1
"""In place of how often a message came back: once at least."""
MOST_HEADERS = 64 * 1024
"""Bytes that our own headers may take; a frame, and so all headers of a message, ends at 128 KiB."""
NOT_SENT_AGAIN = ("dead", "discarded")
_PERSISTENT = 2

log = logging.getLogger("unpoison")


class Envelope(msgspec.Struct):
    """What the properties of one message say."""

    id: str
    key: str | None
    headers: Mapping[str, str] = NO_HEADERS
    stamp: str | None = None
    counters: Counters = UNTRIED
    returns: int = 0
    """How often the message came back since it was stored, or FLAGGED."""
    wait: float = 0.0
    """Seconds that it still has to wait: the delay was too long for one way through the delay queues."""
    route: tuple[str, str] | None = None
    """Exchange and routing key of the original; None if they are not known."""
    expiration: str | None = None
    senders_attempts: bytes | None = None
    """A header `x-delivery-attempts` that is not ours, as it came."""
    letter: str | None = None
    """The record of a dead letter, if this is one that we have not sent again."""
    properties: Properties = properties.NONE


class Receipt(settling.Receipt, frozen=True, eq=False):
    """The holder is a channel, the handle a delivery tag, the envelope the properties as bytes."""

    route: bytes = b""


def published(message: Outgoing, extra: Sequence[Header] = ()) -> bytes:
    """The properties of a new message."""
    headers = [*extra, *(header(name.encode(), content) for name, content in message.headers.items()), header(STAMP, unique())]
    if message.key is not None:
        headers.append(header(KEY, message.key))
    return _written(message.id, headers)


def copied(original: Envelope, counters: Counters, extra: Sequence[Header] = ()) -> bytes:
    """The properties of a copy: what the sender wrote, with these counters."""
    senders = [each for each in original.properties.headers.entries if is_senders(each.name) and each.name not in ROUTING]
    headers = [*senders, *counters_headers(counters), *extra, header(STAMP, original.stamp or unique())]
    if original.key is not None:
        headers.append(header(KEY, original.key))
    if original.expiration is not None:
        headers.append(header(EXPIRATION, original.expiration))
    if original.senders_attempts is not None:
        headers.append(Header(SENDERS_ATTEMPTS, original.senders_attempts))
    if original.route is not None:
        headers += (header(EXCHANGE, original.route[0]), header(ROUTING_KEY, original.route[1]))
    return _written(original.id, headers, original.properties)


def also_to(queue: str) -> Header:
    """Stores one message in this queue too. RabbitMQ takes this header off on the way."""
    return Header(b"BCC", properties.array([queue]))


def _written(id_: str, headers: list[Header], like: Properties = properties.NONE) -> bytes:
    if len(id_.encode()) > 255:  # what a short string of AMQP can hold
        return properties.write(None, [*headers, header(LONG_ID, id_)], like)
    return properties.write(id_, headers, like)


def is_senders(name: bytes) -> bool:
    """Whether the sender wrote this header: it is neither ours nor the broker's."""
    return not name.startswith(_NOT_SENDERS)


def counters_headers(counters: Counters) -> list[Header]:
    told = counters_text(counters, MOST_HEADERS // 4)
    return [] if told is None else [header(ATTEMPTS, counters.attempts), header(COUNTERS, told)]


def opened(arrived: Arrived) -> Envelope:
    """The envelope of a message. May raise."""
    return look(arrived, properties.read(arrived.properties))


def opened_safely(arrived: Arrived) -> Envelope:
    """As `opened`; of a message that cannot be read, its body is known, and id and key if those can be read."""
    return read_one(arrived, opened, _bare)


def _bare(arrived: Arrived, _: Exception) -> Envelope:
    like = read_one(arrived.properties, properties.read, lambda *_: properties.NONE)
    key = read_one(dict(like.headers.entries), lambda found: text_of(found, KEY), lambda *_: None)
    id_ = like.id if like.id is not None else _unnamed(arrived)
    return Envelope(id_, key, route=route_of(arrived.route, {}), properties=like)


def of_delivery(delivery: Delivery) -> Envelope:
    """The envelope that a delivery came in, as far as copies need it: the delivery has the rest, and decoding takes time."""
    receipt: Receipt = delivery.receipt
    arrived = Arrived(receipt.handle, False, receipt.envelope, delivery.body, receipt.route)
    return read_one(arrived, partial(_original, delivery), _bare)


def _original(delivery: Delivery, arrived: Arrived) -> Envelope:
    """May raise."""
    like = properties.read(arrived.properties)
    found = dict(like.headers.entries)
    own = text_of(found, STAMP)
    return Envelope(
        delivery.id,
        delivery.key if delivery.key is not None else text_of(found, KEY),  # one that could not be read has none
        delivery.headers,
        own,
        route=route_of(arrived.route, found),
        expiration=_expiration(found, like),
        senders_attempts=found.get(SENDERS_ATTEMPTS if own else ATTEMPTS),
        properties=like,
    )


def not_read(source: str, holder: object, arrived: Arrived, error: Exception) -> Unreadable:
    """The delivery of a message that could not be read."""
    receipt = Receipt(holder, arrived.tag, arrived.properties, arrived.route)
    return unreadable(receipt, source, _bare(arrived, error).id, arrived.body, arrived.properties, error)


def _unnamed(arrived: Arrived) -> str:
    return f"unnamed-{hashlib.blake2b(arrived.body, digest_size=8).hexdigest()}"


def look(arrived: Arrived, like: Properties) -> Envelope:
    """Read an envelope, whatever is in it: what we do not understand is ignored. May raise."""
    found = dict(like.headers.entries)
    headers = {as_text(name): text(value) for name, value in like.headers.entries if is_senders(name)}
    named = text(found[LONG_ID]) if LONG_ID in found else like.id
    own = text_of(found, STAMP)
    # Every copy of ours has a stamp. Without one, another program wrote headers with the names of ours.
    senders = found.get(SENDERS_ATTEMPTS if own else ATTEMPTS)
    if senders is not None:
        headers[ATTEMPTS.decode()] = text(senders)
    wait = _number(found.get(REST), (float, int), 0.0)
    return Envelope(
        id=named if named is not None else own or _unnamed(arrived),
        key=text_of(found, KEY),
        headers=headers or NO_HEADERS,
        stamp=own,
        counters=_counters(found) if own else UNTRIED,
        returns=_returns(found) if arrived.redelivered else 0,
        wait=float(wait) if 0 < wait <= MOST_MOMENT else 0.0,  # else another program wrote it
        route=route_of(arrived.route, found),
        expiration=_expiration(found, like),
        senders_attempts=senders,
        letter=_letter(found) if own else None,
        properties=like,
    )


def _letter(found: Mapping[bytes, bytes]) -> str | None:
    """The record of a letter that nobody has sent again. One that we sent again says so in its state."""
    if LETTER not in found or text_of(found, STATE) not in NOT_SENT_AGAIN:
        return None
    return text_of(found, RECORD) or ""


def _expiration(found: Mapping[bytes, bytes], like: Properties) -> str | None:
    """RabbitMQ takes it off a message that has expired, and notes it."""
    if EXPIRATION in found:
        return text(found[EXPIRATION])
    if like.expiration is not None:
        return like.expiration
    noted = last_death(found).get("original-expiration") if b"x-death" in found else None
    return None if noted is None else str(noted)


def route_of(route: bytes, found: Mapping[bytes, bytes]) -> tuple[str, str] | None:
    """Exchange and routing key of the original: from its headers, else from how it arrived."""
    if EXCHANGE in found and ROUTING_KEY in found:
        return text(found[EXCHANGE]), text(found[ROUTING_KEY])
    if route:
        return read_route(route)  # a delay of ours leads to its queue by the default exchange, as a plain publish does
    death = last_death(found)
    keys = death.get("routing-keys")
    return (str(death["exchange"]), str(keys[0])) if isinstance(keys, list) and keys and "exchange" in death else None


def last_death(headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """What RabbitMQ noted when it last dead-lettered this message; empty if it never did, or another program wrote the header."""
    deaths = properties.value(headers[b"x-death"]) if b"x-death" in headers else []
    return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}


def _returns(found: Mapping[bytes, bytes]) -> int:
    """How often a redelivered message came back; FLAGGED if the queue keeps no count, as classic ones do not."""
    counts = [_number(found.get(name), (int,), 0) for name in (b"x-delivery-count", b"x-acquired-count")]
    return max(counts) if max(counts) > 0 else FLAGGED


def _counters(found: Mapping[bytes, bytes]) -> Counters:
    return counters_or_untried(properties.json_text(found[COUNTERS])) if COUNTERS in found else UNTRIED


def _number(raw: bytes | None, kinds: tuple[type, ...], otherwise: Any) -> Any:
    content = None if raw is None else properties.value(raw)
    return content if type(content) in kinds else otherwise


_STAMP_ALONE = bytes((len(STAMP),)) + STAMP + b"S"
"""How a table of headers begins that has the stamp before all others; its length follows, in four bytes."""


def is_plain(data: bytes) -> bool:
    """Whether nothing is known about the message's past: no other header than the stamp of our own publish."""
    return data[:2] == b"\x30\x80" and data[6:24] == _STAMP_ALONE and int.from_bytes(data[2:6], "big") == 22 + data[27]


def plain(source: str, arrived: Arrived, holder: object) -> Delivery:
    """The short way for a message that `is_plain`."""
    data = arrived.properties
    at = 7 + int.from_bytes(data[2:6], "big")
    receipt = Receipt(holder, arrived.tag, data, arrived.route)
    return Delivery(receipt, source, data[at + 1 :].decode("utf-8", "backslashreplace"), arrived.body)


class ForeignMessages:
    """Counters of messages that did not come by our own ways, and the log lines about them.

    A shovel or the management page may move a dead letter back into its source: it starts again as a replay. And other programs
    count in a header `x-delivery-attempts` too: it counts only beside a stamp of ours.
    """

    def __init__(self) -> None:
        self._moved = CameBack(tell=serialization.tell)
        self._warned: set[str] = set()

    def counters(self, source: str, known: Envelope) -> Counters:
        """Those that a message in its source starts with."""
        if known.stamp is None and known.senders_attempts is not None and source not in self._warned:
            self._warned.add(source)
            log.warning(
                "Source %r: message %r came with a header x-delivery-attempts: %s that unpoison did not write. The handler sees "
                "it; it is not counted, so the message has all its attempts. Said once for this source.",
                source,
                known.id,
                known.headers["x-delivery-attempts"],
                extra=fields("foreign-attempts", source=source, message_id=known.id),
            )
        if known.letter is None:
            return known.counters
        self._moved.note(source)
        return serialization.restarted(known.letter, known.counters.replays)

    def tell_due(self) -> None:
        self._moved.tell_due()


class StoreAgain(NamedTuple):
    """A message that has to be stored again before it may run: it came back uncounted, or has to wait longer."""

    arrived: Arrived
    original: Envelope
    counters: Counters


def read_together(
    source: str, holder: object, one: Callable[[Arrived], Delivery | StoreAgain], arrived: Sequence[Arrived]
) -> list[Delivery | StoreAgain]:
    return [
        plain(source, message, holder) if not message.redelivered and is_plain(message.properties) else one(message)
        for message in arrived
    ]


def read(source: str, holder: object, foreign: ForeignMessages, message: Arrived) -> Delivery | StoreAgain:
    known = opened(message)
    counters = _returned(foreign.counters(source, known), known.returns)
    if known.wait > 0 or (known.returns == FLAGGED and known.counters.vanished == 0 and not known.counters.alone):
        return StoreAgain(message, known, counters)
    return delivery_of(source, holder, message, known, counters)


def delivery_of(source: str, holder: object, message: Arrived, known: Envelope, counters: Counters) -> Delivery:
    receipt = Receipt(holder, message.tag, message.properties, message.route)
    return Delivery(receipt, source, known.id, message.body, known.key, known.headers, counters)


def _returned(counters: Counters, returns: int) -> Counters:
    """The counters after a message came back so often."""
    for _ in range(1 if returns == FLAGGED else min(2, returns)):
        counters = counters.returned()
    return counters


def native(delivery: Delivery) -> Native:
    """What RabbitMQ itself says about a message. Of a retry: what it said about the original, as far as a copy keeps it."""
    receipt: Receipt = delivery.receipt
    if receipt.route and is_plain(receipt.envelope):
        known = {"message_id": delivery.id, "delivery_mode": _PERSISTENT, **_route(read_route(receipt.route))}
        return Native(properties={**dict.fromkeys(properties.PLAIN_FIELDS), **known})
    fields, (entries, _) = properties.all_fields(receipt.envelope)
    found = {each.name: each.value for each in entries}
    if LONG_ID in found:
        fields["message_id"] = delivery.id
    if EXPIRATION in found:
        fields["expiration"] = text(found[EXPIRATION])
    headers = [(as_text(name), properties.native(value)) for name, value in entries if is_senders(name)]
    if attempts := found.get(SENDERS_ATTEMPTS if STAMP in found else ATTEMPTS):
        headers.append((ATTEMPTS.decode(), properties.native(attempts)))
    return Native(
        properties.native(found[KEY]) if KEY in found else None,
        tuple(headers),
        {**fields, **_route(route_of(receipt.route, found) or (None, None))},
    )


def _route(route: tuple[str | None, str | None]) -> dict[str, str | None]:
    return {"exchange": route[0], "routing_key": route[1]}
