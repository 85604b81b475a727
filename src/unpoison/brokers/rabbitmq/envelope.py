"""What travels with a message, and how does it become a Delivery?

Headers: `x-delivery-attempts` holds the starts already charged, `x-unpoison-…` the other counters, `x-unpoison-stamp` names
the message for good (its id is the sender's and need not be unique). Broker-owned headers are never copied: a copied
delivery count is shown as real, and a copied x-death makes older servers drop the message as a loop.
"""

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from unpoison.brokers.rabbitmq import header_table, properties
from unpoison.brokers.rabbitmq.header_table import Header
from unpoison.brokers.rabbitmq.properties import Properties
from unpoison.brokers.rabbitmq.wire import Arrived, read_route
from unpoison.model.message import (
    MOST_COUNTED,
    MOST_MOMENT,
    NO_HEADERS,
    UNTRIED,
    Counters,
    Delivery,
    Native,
    Outgoing,
    PastAttempt,
    as_text,
)
from unpoison.port.reading import Unreadable, read_one, unreadable
from unpoison.port.serialization import UNREADABLE

STAMP, KEY, ATTEMPTS, REST = b"x-unpoison-stamp", b"x-unpoison-key", b"x-delivery-attempts", b"x-unpoison-wait"
EXCHANGE, ROUTING_KEY = b"x-unpoison-exchange", b"x-unpoison-routing-key"
"""What the original was published with: a copy has a route of its own."""
EXPIRATION = b"x-unpoison-expiration"
"""The one that the sender set, in milliseconds. A copy does not expire."""
SENDERS_ATTEMPTS = b"x-unpoison-senders-attempts"
"""What the sender wrote as `x-delivery-attempts`: ours takes its place on a copy."""
RECORD, LETTER, STATE = b"x-unpoison-letter", b"x-unpoison-letter-id", b"x-unpoison-state"
LONG_ID = b"x-unpoison-id"
"""For an id of more than the 255 bytes that the property can hold."""

DIGIT = b"unpoison-d"
"""Headers that lead a delayed message down the ladder; without x-, since a headers exchange ignores those."""

BROKERS = (b"x-death", b"x-first-death-", b"x-last-death-", b"x-delivery-count", b"x-acquired-count", b"x-opt-")
_OURS = (ATTEMPTS, b"x-unpoison-", DIGIT)
ROUTING = (b"CC", b"BCC")
"""A copy with one of these would go to those queues too, a second time."""

_FIELDS = {
    ATTEMPTS: "attempts",
    b"x-unpoison-vanished": "vanished",
    b"x-unpoison-losses": "losses",
    b"x-unpoison-alone": "alone",
    b"x-unpoison-fresh": "fresh",
    b"x-unpoison-interrupted": "interrupted",
    b"x-unpoison-replays": "replays",
    b"x-unpoison-first-failed-at": "first_failed_at",
}
_HISTORY = b"x-unpoison-history"
COUNTERS = frozenset((*_FIELDS, _HISTORY))
_KINDS: Mapping[str, tuple[type, ...]] = {"alone": (bool,), "fresh": (bool,), "first_failed_at": (float, int)}
FLAGGED = -1
"""In place of how often a message came back: once at least."""

MOST_HEADERS = 64 * 1024
"""Bytes that our own headers may take; a frame, and so all headers of a message, ends at 128 KiB."""

_process, _count = os.urandom(6).hex(), itertools.count()


class Envelope(msgspec.Struct):
    """What the envelope of one message says."""

    id: str
    key: str | None
    headers: Mapping[str, str]
    stamp: str | None
    counters: Counters
    returns: int
    wait: float
    route: tuple[str, str] | None = None
    """Exchange and routing key of the original; None if they are not known."""
    expiration: str | None = None
    senders_attempts: bytes | None = None
    """A header `x-delivery-attempts` that is not ours, as it came."""
    letter: str | None = None
    """What the record of a dead letter says, if this is one that was not sent again by us."""


def stamp() -> str:
    """A name that no other message has."""
    if os.getpid() != _pid[0]:  # a forked child must not go on with its parent's numbers
        _pid[0] = os.getpid()
        globals()["_process"] = os.urandom(6).hex()
    return f"{_process}{next(_count):x}"


_pid = [os.getpid()]


def published(message: Outgoing, extra: Sequence[Header] = ()) -> bytes:
    """The properties of a new message."""
    entries = [*extra, *(header_table.header(name, text) for name, text in message.headers.items())]
    entries.append(header_table.header("x-unpoison-stamp", stamp()))
    if message.key is not None:
        entries.append(header_table.header("x-unpoison-key", message.key))
    return _written(message.id, entries)


def copied(seen: Envelope, like: Properties, counters: Counters, *, extra: list[Header] | None = None) -> bytes:
    """The properties of a copy: what the sender wrote, with these counters."""
    entries = [*kept(like), *counted(counters), *(extra or ())]
    entries.append(header_table.header("x-unpoison-stamp", seen.stamp or stamp()))
    if seen.key is not None:
        entries.append(header_table.header("x-unpoison-key", seen.key))
    if seen.expiration is not None:
        entries.append(header_table.header(EXPIRATION.decode(), seen.expiration))
    if seen.senders_attempts is not None:
        entries.append(Header(SENDERS_ATTEMPTS, seen.senders_attempts))
    if seen.route is not None:
        entries += [
            header_table.header(name.decode(), text) for name, text in zip((EXCHANGE, ROUTING_KEY), seen.route, strict=True)
        ]
    return _written(seen.id, entries, like)


def also_to(queue: str) -> Header:
    """Has one message stored in this queue too, and takes itself off on the way."""
    return Header(b"BCC", header_table.array([queue]))


def _written(id_: str, entries: list[Header], like: Properties = properties.NONE) -> bytes:
    if len(id_.encode()) > 255:  # what a short string of AMQP can hold
        return properties.write(None, [*entries, header_table.header("x-unpoison-id", id_)], like)
    return properties.write(id_, entries, like)


def kept(like: Properties) -> list[Header]:
    """The sender's own headers, as they came."""
    return [each for each in like.headers.entries if is_senders(each.name) and each.name not in ROUTING]


def is_senders(name: bytes) -> bool:
    """Whether it is a header that the sender wrote: neither ours nor the broker's."""
    return not name.startswith(BROKERS) and not name.startswith(_OURS)


def counted(counters: Counters) -> list[Header]:
    """Counters as headers; those that are nought are left out."""
    entries = [header_table.header("x-delivery-attempts", counters.attempts)] if counters != UNTRIED else []
    for name, field in _FIELDS.items():
        content = getattr(counters, field)
        if field != "attempts" and content not in (0, None, False):
            entries.append(header_table.header(name.decode(), content))
    if counters.history:
        entries.append(header_table.header("x-unpoison-history", _history(counters.history)))
    return entries


def _history(history: tuple[PastAttempt, ...]) -> str:
    while len(data := msgspec.json.encode(history)) > MOST_HEADERS // 4 and len(history) > 1:
        history = history[1:]
    return data.decode()


def opened(arrived: Arrived) -> tuple[Properties, Envelope]:
    """The properties of a message, and what they say. May raise."""
    like = properties.read(arrived.properties)
    return like, look(arrived, like)


def opened_safely(arrived: Arrived) -> tuple[Properties, Envelope]:
    """As `opened`; of a message that cannot be read, only its body is known."""

    def bare(arrived: Arrived, _: Exception) -> tuple[Properties, Envelope]:
        like = read_one(arrived.properties, properties.read, lambda *_: properties.NONE)
        return like, Envelope(_unnamed(arrived), None, NO_HEADERS, None, UNTRIED, 0, 0.0, route_of(arrived.route, {}))

    return read_one(arrived, opened, bare)


def not_read(source: str, holder: object, arrived: Arrived, error: Exception) -> Unreadable:
    """The delivery of a message that could not be read."""
    receipt = Receipt(holder, arrived.tag, arrived.properties, arrived.route)
    return unreadable(receipt, source, _unnamed(arrived), arrived.body, arrived.properties, error)


def _unnamed(arrived: Arrived) -> str:
    return f"unnamed-{hashlib.blake2b(arrived.body, digest_size=8).hexdigest()}"


def look(arrived: Arrived, like: Properties) -> Envelope:
    """Read an envelope, whatever is in it: what we do not understand is as if it were not there. May raise."""
    found = {each.name: each.value for each in like.headers.entries}
    headers = {as_text(each.name): header_table.text(each.value) for each in like.headers.entries if is_senders(each.name)}
    key = header_table.text(found[KEY]) if KEY in found else None
    named = header_table.text(found[LONG_ID]) if LONG_ID in found else like.id
    own = header_table.text(found[STAMP]) if STAMP in found else None
    # Every copy of ours has a stamp. Without one, counters are somebody else's headers of those names.
    senders = found.get(SENDERS_ATTEMPTS if own else ATTEMPTS)
    if senders is not None:
        headers[ATTEMPTS.decode()] = header_table.text(senders)
    wait = _number(found.get(REST), (float, int), 0.0)
    wait = wait if 0 < wait <= MOST_MOMENT else 0.0  # else somebody else's header of that name
    return Envelope(
        id=named if named is not None else own or _unnamed(arrived),
        key=key,
        headers=headers or NO_HEADERS,
        stamp=own,
        counters=_counters(found) if own else UNTRIED,
        returns=_returns(found) if arrived.redelivered else 0,
        wait=float(wait),
        route=route_of(arrived.route, found),
        expiration=_expiration(found, like),
        senders_attempts=senders,
        letter=_letter(found) if own else None,
    )


def _letter(found: Mapping[bytes, bytes]) -> str | None:
    """What tells that it is a letter that nobody has sent again. A replay of ours says so in its state."""
    if LETTER not in found or STATE not in found or header_table.text(found[STATE]) not in NOT_SENT_AGAIN:
        return None
    return header_table.text(found[RECORD]) if RECORD in found else ""


NOT_SENT_AGAIN = ("dead", "discarded")


def _expiration(found: Mapping[bytes, bytes], like: Properties) -> str | None:
    """RabbitMQ takes it off a message that has expired, and notes it."""
    if EXPIRATION in found:
        return header_table.text(found[EXPIRATION])
    if like.expiration is not None:
        return like.expiration
    noted = last_death(found).get("original-expiration") if b"x-death" in found else None
    return None if noted is None else str(noted)


def route_of(route: bytes, found: Mapping[bytes, bytes]) -> tuple[str, str] | None:
    """Exchange and routing key of the original: from its headers, else from how it arrived."""
    if EXCHANGE in found and ROUTING_KEY in found:
        return header_table.text(found[EXCHANGE]), header_table.text(found[ROUTING_KEY])
    if route:
        return read_route(route)  # a delay of ours leads to its queue by the default exchange, as a plain publish does
    death = last_death(found)
    keys = death.get("routing-keys")
    return (str(death["exchange"]), str(keys[0])) if isinstance(keys, list) and keys and "exchange" in death else None


def last_death(headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """What RabbitMQ noted when it last dead-lettered this message; empty if it never did, or somebody else wrote the header."""
    deaths = header_table.value(headers[b"x-death"]) if b"x-death" in headers else []
    return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}


def _returns(found: Mapping[bytes, bytes]) -> int:
    """How often a redelivered message came back; FLAGGED if the queue keeps no count, as classic ones do not."""
    counts = [_number(found.get(name), (int,), 0) for name in (b"x-delivery-count", b"x-acquired-count")]
    return max(counts) if max(counts) > 0 else FLAGGED


def _counters(found: Mapping[bytes, bytes]) -> Counters:
    fields: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        if name in found:
            kinds = _KINDS.get(field, (int,))
            content = _number(found[name], kinds, None)
            most = MOST_MOMENT if field == "first_failed_at" else MOST_COUNTED
            if content is not None and (isinstance(content, bool) or 0 <= content <= most):
                fields[field] = content
    if _HISTORY in found:
        with suppress(*UNREADABLE):  # somebody else's header of that name
            fields["history"] = msgspec.json.decode(header_table.text(found[_HISTORY]), type=tuple[PastAttempt, ...])
    return Counters(**fields) if fields else UNTRIED


def _number(raw: bytes | None, kinds: tuple[type, ...], otherwise: Any) -> Any:
    content = None if raw is None else header_table.value(raw)
    return content if type(content) in kinds else otherwise


class Receipt(msgspec.Struct, frozen=True, eq=False):
    """How a message is found again when it is settled: who holds it, under which tag."""

    holder: Any
    tag: int
    properties: bytes
    route: bytes = b""


_STAMP_ALONE = bytes((len(STAMP),)) + STAMP + b"S"
"""How a table of headers begins that has the stamp before all others; its length follows, in four bytes."""


def is_plain(data: bytes) -> bool:
    """Whether nothing is known about the message's past: no other header than the stamp of our own publish."""
    return data[:2] == b"\x30\x80" and data[6:24] == _STAMP_ALONE and int.from_bytes(data[2:6], "big") == 22 + data[27]


def plain(source: str, arrived: Arrived, holder: object) -> Delivery:
    """The short way for a message that `is_plain`."""
    data = arrived.properties
    at = 7 + int.from_bytes(data[2:6], "big")
    return Delivery(
        Receipt(holder, arrived.tag, data, arrived.route),
        source,
        data[at + 1 :].decode("utf-8", "backslashreplace"),
        arrived.body,
    )


# What does RabbitMQ itself say about a message? Of a retry: what it said about the original, as far as a copy keeps it.


_UNSET = dict.fromkeys(properties.PLAIN_FIELDS)
_PERSISTENT = 2


def native(delivery: Delivery) -> Native:
    receipt: Receipt = delivery.receipt
    if receipt.route and is_plain(receipt.properties):
        known = {"message_id": delivery.id, "delivery_mode": _PERSISTENT, **_route(read_route(receipt.route))}
        return Native(properties={**_UNSET, **known})
    told, (entries, _) = properties.all_fields(receipt.properties)
    found = {each.name: each.value for each in entries}
    if LONG_ID in found:
        told["message_id"] = delivery.id
    if EXPIRATION in found:
        told["expiration"] = header_table.text(found[EXPIRATION])
    headers = [(as_text(name), header_table.native(value)) for name, value in entries if is_senders(name)]
    if attempts := found.get(SENDERS_ATTEMPTS if STAMP in found else ATTEMPTS):
        headers.append((ATTEMPTS.decode(), header_table.native(attempts)))
    return Native(
        header_table.native(found[KEY]) if KEY in found else None,
        tuple(headers),
        {**told, **_route(route_of(receipt.route, found) or (None, None))},
    )


def _route(route: tuple[str | None, str | None]) -> dict[str, str | None]:
    return {"exchange": route[0], "routing_key": route[1]}
