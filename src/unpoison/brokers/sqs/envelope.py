"""Read and write the attribute that travels with a message.

One attribute, `unpoison`, with JSON: id, key and headers of the sender, counters, and `stamp`, which names a copy for good: the
MessageId of the first original. Only copies of ours have a stamp: counters without one were written by another program and count
nothing. Attributes that another program put on a message go along with each copy as they are. A message may have ten, and ours is
one of them: of ten foreign ones the last by name travels inside of ours.

A body that is text goes as it is. What SQS refuses (bytes that are no text, control characters, nothing at all) goes as base64,
and what is too large is compressed first; `encoding` says which. It arrives bit for bit.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from unpoison.model.message import NO_HEADERS, UNTRIED, Counters, Delivery, Moment, Native, Outgoing
from unpoison.model.message import as_text as text
from unpoison.port.copying.settling import Receipt
from unpoison.port.reading import Unreadable, read_one, unreadable
from unpoison.port.serialization import counters_or_untried, counters_text

ATTRIBUTE = "unpoison"
MOST_ATTRIBUTES = 10
MOST_COUNTERS = 4 * 1024
PLAIN = '{"id":"'
"""How the envelope of a message begins of which nothing is known but its id."""

RECEIVED, SENT_AT, RECEIVED_AT = "ApproximateReceiveCount", "SentTimestamp", "ApproximateFirstReceiveTimestamp"
GROUP, TRACE = "MessageGroupId", "AWSTraceHeader"
SEQUENCE = "SequenceNumber"
OF_FIFO = ["MessageDeduplicationId", SEQUENCE]
SYSTEM_ATTRIBUTES = [RECEIVED, SENT_AT, RECEIVED_AT, GROUP, TRACE, *OF_FIFO]
"""Those that cost nothing where they are not set. SenderId, which every message has, is not asked for."""
CAME_FROM = "DeadLetterQueueSourceArn"
"""Of a message that SQS itself has moved to a DLQ."""

Raw = Mapping[str, Any]
"""A message as SQS hands it out."""


class Envelope(msgspec.Struct, omit_defaults=True):
    """The content of our attribute. `id` stands first: see PLAIN."""

    id: str | None = None
    key: str | None = None
    headers: dict[str, str] = {}
    encoding: str | None = None
    stamp: str | None = None
    counters: dict[str, Any] = {}
    wait: Moment = 0.0
    """Seconds that it still had to wait when it was sent."""
    attributes: dict[str, dict[str, str]] = {}
    """Attributes of the sender for which there was no place beside ours."""
    letter: dict[str, Any] = {}
    letter_id: str | None = None
    state: str | None = None


class Seen(msgspec.Struct):
    """What one message says."""

    id: str
    key: str | None
    headers: Mapping[str, str]
    stamp: str
    body: bytes
    counters: Counters
    envelope: Envelope


_decode = msgspec.json.Decoder(Envelope).decode


def is_plain(raw: Raw) -> bool:
    """Whether it was never handed out before and nothing is known about it but its id."""
    attributes = raw.get("MessageAttributes")
    if attributes is None or len(attributes) != 1 or ATTRIBUTE not in attributes or raw["Attributes"][RECEIVED] != "1":
        return False
    text = attributes[ATTRIBUTE].get("StringValue", "")
    return text.startswith(PLAIN) and text.count('"') == 4 and "\\" not in text


def plain(source: str, raw: Raw, holder: object) -> Delivery:
    """The short way for a message that `is_plain`."""
    id_ = raw["MessageAttributes"][ATTRIBUTE]["StringValue"][len(PLAIN) : -2]
    return Delivery(Receipt(holder, raw["ReceiptHandle"], raw), source, id_, raw["Body"].encode())


def sent_at(raw: Raw) -> int:
    """When it was sent, in milliseconds, by the server's clock."""
    return int(raw["Attributes"].get(SENT_AT, 0))


def sequence(raw: Raw) -> int:
    """Its place in a FIFO queue."""
    return int(raw["Attributes"].get(SEQUENCE, 0))


def received(raw: Raw) -> int:
    """How often it was handed out, this time included."""
    return int(raw["Attributes"].get(RECEIVED, 1))


def look_safely(raw: Raw) -> Seen:
    """As `look`; of a message that cannot be read, only its place and its body are known."""

    def bare(raw: Raw, _: Exception) -> Seen:
        id_ = raw["MessageId"]
        return Seen(id_, None, NO_HEADERS, id_, decoded(raw["Body"], None), UNTRIED, Envelope())

    return read_one(raw, look, bare)


def not_read(source: str, holder: object, raw: Raw, error: Exception) -> Unreadable:
    """The delivery of a message that could not be read."""
    native = {name: value for name, value in raw.items() if name not in ("Body", "ReceiptHandle")}
    receipt = Receipt(holder, raw["ReceiptHandle"], raw)
    return unreadable(receipt, source, raw["MessageId"], raw["Body"], native, error)


def look(raw: Raw) -> Seen:
    """Read a message, whatever is in it: what we do not understand is as if it were not there. May raise."""
    envelope = _read(raw)
    foreign = {name: text(attribute_bytes(value)) for name, value in foreign_attributes(raw, envelope).items()}
    key = envelope.key if envelope.key is not None or envelope.id is not None else raw["Attributes"].get(GROUP)
    return Seen(
        id=raw["MessageId"] if envelope.id is None else envelope.id,
        key=key,
        headers={**foreign, **envelope.headers} or NO_HEADERS,
        stamp=envelope.stamp or raw["MessageId"],
        body=decoded(raw["Body"], envelope.encoding),
        counters=counters_or_untried(envelope.counters) if envelope.stamp else UNTRIED,
        envelope=envelope,
    )


def has_foreign_counters(seen: Seen) -> bool:
    """Whether it claims starts that no copy of ours has written down."""
    return bool(seen.envelope.counters) and seen.envelope.stamp is None


def _read(raw: Raw) -> Envelope:
    own = (raw.get("MessageAttributes") or {}).get(ATTRIBUTE)
    with suppress(msgspec.DecodeError, ValueError, TypeError, RecursionError):  # another program's attribute of that name
        if own is not None:
            return _decode(own.get("StringValue", ""))
    return Envelope()


def counted(counters: Counters) -> dict[str, Any]:
    """Counters as part of our attribute."""
    text = counters_text(counters, MOST_COUNTERS)
    return {} if text is None else dict(msgspec.json.decode(text))


def published(message: Outgoing) -> Envelope:
    """The envelope of a new message."""
    return Envelope(id=message.id, key=message.key, headers=dict(message.headers))


def copied(seen: Seen, counters: Counters) -> Envelope:
    """The envelope of a copy: what the sender wrote, with these counters."""
    was = seen.envelope
    return Envelope(
        id=seen.id,
        key=seen.key,
        headers=was.headers,
        stamp=seen.stamp,
        counters=counted(counters),
        attributes=was.attributes,
    )


def as_text(envelope: Envelope) -> str:
    """As it is sent: JSON of characters that SQS takes."""
    text = msgspec.json.encode(envelope).decode()
    return text if text.isascii() else json.dumps(msgspec.to_builtins(envelope), separators=(",", ":"))


def attributes(envelope: Envelope, raw: Raw | None) -> dict[str, Any]:
    """The attributes of a message: our own, and those that the original had from another program."""
    theirs = {} if raw is None else sent(raw)
    theirs.pop(ATTRIBUTE, None)
    if len(theirs) >= MOST_ATTRIBUTES:
        packed = {name: msgspec.to_builtins(theirs.pop(name)) for name in sorted(theirs)[MOST_ATTRIBUTES - 1 :]}
        envelope = msgspec.structs.replace(envelope, attributes={**envelope.attributes, **packed})
    return {**theirs, ATTRIBUTE: {"DataType": "String", "StringValue": as_text(envelope)}}


def sent(raw: Raw) -> dict[str, Any]:
    """The attributes of a message as they were sent."""
    return {name: _sent(value) for name, value in (raw.get("MessageAttributes") or {}).items()}


def foreign_attributes(raw: Raw, envelope: Envelope) -> dict[str, Mapping[str, Any]]:
    """The attributes of the sender, wherever they travel."""
    direct = {name: value for name, value in (raw.get("MessageAttributes") or {}).items() if name != ATTRIBUTE}
    return {**envelope.attributes, **direct}


def _sent(value: Mapping[str, Any]) -> dict[str, Any]:
    """An attribute as it was sent; what SQS adds to it, empty lists, it does not take."""
    return {name: value[name] for name in ("DataType", "StringValue", "BinaryValue") if name in value}


def attribute_bytes(value: Mapping[str, Any]) -> bytes:
    """What an attribute holds. Inside of our own one, bytes travel as base64."""
    if "StringValue" in value:
        return str(value["StringValue"]).encode("utf-8", "surrogatepass")
    content = value.get("BinaryValue", b"")
    if isinstance(content, bytes):
        return content
    with suppress(ValueError):  # another program's attribute of our name
        return base64.b64decode(str(content), validate=True)
    return str(content).encode("utf-8", "surrogatepass")


def native(delivery: Delivery) -> Native:
    """What SQS itself says about a message. Of a retry, id and attributes are the original's; what SQS counts is the copy's."""
    receipt: Receipt = delivery.receipt
    seen = look(receipt.envelope)
    theirs = foreign_attributes(receipt.envelope, seen.envelope)
    headers = [(name, attribute_bytes(value)) for name, value in theirs.items()]
    headers += [(name, text.encode()) for name, text in seen.envelope.headers.items()]
    attributes = {name: _typed(value, content) for (name, value), (_, content) in zip(theirs.items(), headers, strict=False)}
    return Native(
        None if seen.key is None else seen.key.encode(),
        tuple(headers),
        {
            "message_id": seen.stamp,
            "message_group": receipt.envelope["Attributes"].get(GROUP),
            "timestamp": _sent_at(receipt.envelope),
            "message_attributes": attributes,
            "system_attributes": dict(receipt.envelope["Attributes"]),
        },
    )


def _typed(value: Raw, content: bytes) -> dict[str, str | bytes]:
    """An attribute with its type, in SQS's own words."""
    if "StringValue" in value:
        return {"DataType": str(value.get("DataType", "String")), "StringValue": str(value["StringValue"])}
    return {"DataType": str(value.get("DataType", "Binary")), "BinaryValue": content}


def _sent_at(raw: Raw) -> float | None:
    moment = sent_at(raw)
    return moment / 1000 if moment else None


EMPTY, BASE64, ZLIB = "empty", "base64", "zlib"
NOTHING = "-"
"""Stands for a body of no bytes: SQS refuses an empty one."""

MOST_BYTES = 64 * 1024 * 1024
"""Of a body that is compressed. A megabyte that SQS takes can be a gigabyte of the same byte, and would take all memory."""

_REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def encoded(body: bytes, most: int) -> tuple[str, str | None]:
    """The text that is sent, and its encoding (None: as it is). It may be longer than `most` bytes if nothing helps."""
    if not body:
        return NOTHING, EMPTY
    plain = _text(body)
    text, encoding = (base64.b64encode(body).decode(), BASE64) if plain is None else (plain, None)
    if len(body if encoding is None else text) <= most or len(body) > MOST_BYTES:
        return text, encoding
    smaller = base64.b64encode(zlib.compress(body)).decode()
    return (smaller, ZLIB) if len(smaller) < len(text) else (text, encoding)


def _decompressed(small: bytes) -> bytes:
    stream = zlib.decompressobj()
    body = stream.decompress(small, MOST_BYTES + 1)
    if not stream.eof or len(body) > MOST_BYTES:
        raise ValueError("It is longer than we send any, or not whole.")
    return body


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _REFUSED.search(text) else text


def decoded(text: str, encoding: str | None) -> bytes:
    """The body. What claims to be encoded and is not is taken as it is: another program wrote it."""
    raw = text.encode("utf-8", "surrogatepass")
    try:
        match encoding:
            case "empty":
                return b"" if text == NOTHING else raw
            case "base64":
                return base64.b64decode(raw, validate=True)
            case "zlib":
                return _decompressed(base64.b64decode(raw, validate=True))
    except (binascii.Error, ValueError, zlib.error):
        return raw
    return raw
