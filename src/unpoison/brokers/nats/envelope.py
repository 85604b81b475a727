"""Read and write the headers that travel with a message.

`x-unpoison-id` is the sender's id. A copy has `x-unpoison-counters` (JSON) and `x-unpoison-stamp`, the place of the first
original; counters without a stamp are not ours. NATS gives a meaning to headers that begin with `Nats-` (deduplicate, roll up,
expire), so a copy carries the sender's under another name. What a header cannot hold, such as a line break, is JSON in
`x-unpoison-more`. Header blocks are kept as bytes: what the client would alter, or refuse, stays as it was.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from unpoison.brokers.nats.wire import CRLF, VERSION
from unpoison.model.message import NO_HEADERS, UNTRIED, Counters, Delivery, Native, Outgoing, text_headers
from unpoison.port.copying.settling import Receipt
from unpoison.port.reading import Unreadable, as_text, read_one, unreadable
from unpoison.port.serialization import UNREADABLE, counters_or_untried, counters_text

ID, KEY, STAMP, MORE, GROUP = b"x-unpoison-id", b"x-unpoison-key", b"x-unpoison-stamp", b"x-unpoison-more", b"x-unpoison-group"
ATTEMPTS, COUNTERS, WAS = b"x-delivery-attempts", b"x-unpoison-counters", b"x-unpoison-was-"
MESSAGE_ID = b"Nats-Msg-Id"
FIRST_LINE = VERSION + CRLF
PLAIN = FIRST_LINE + ID + b": "
"""How the block of a message begins that we published and that has no other header."""

MOST_COUNTERS = 16 * 1024
"""Bytes of the counters with their history: headers count towards what the server takes at most."""

_OURS = (ATTEMPTS, b"x-unpoison-")


class Place(NamedTuple):
    """Where the server keeps a message, and how often it has handed it out; all of it is in the reply subject."""

    stream: str
    consumer: str
    delivered: int
    number: int
    turn: int
    """Which of all deliveries of this consumer it is."""
    stored_at: int

    def __str__(self) -> str:
        """Unique for good: a stream that was deleted and created again counts from 1 again."""
        return f"{self.stream}:{self.number}:{self.stored_at}"


def place(reply: bytes) -> Place:
    """Read a reply subject: $JS.ACK.<stream>.<consumer>.<delivered>.<number>.…, some with domain and account before it."""
    words = reply.split(b".")
    stream, consumer, *numbers = words[2:8] if len(words) == 9 else words[4:10]
    return Place(stream.decode(), consumer.decode(), *map(int, numbers))


def is_first(reply: bytes) -> bool:
    """Whether the message was never handed out before."""
    words = reply.split(b".")
    return words[4 if len(words) == 9 else 6] == b"1"


class Arrived(NamedTuple):
    """A message as the server handed it out; it is ours until then, by our own clock."""

    reply: bytes
    block: bytes
    body: bytes
    until: float


class More(msgspec.Struct, omit_defaults=True):
    """What no line of a header can hold."""

    id: str | None = None
    key: str | None = None
    headers: dict[str, str] = {}


class Seen(msgspec.Struct):
    """What the envelope of one message says."""

    id: str
    key: str | None
    headers: Mapping[str, str]
    stamp: str
    counters: Counters


def is_plain(block: bytes) -> bool:
    """Whether nothing is known about the message but its id."""
    return block.startswith(PLAIN) and block.count(CRLF) == 3


def plain(source: str, arrived: Arrived, holder: object) -> Delivery:
    """The short way for a message that `is_plain`."""
    block = arrived.block
    id_ = block[len(PLAIN) : -4].decode("utf-8", "backslashreplace")
    return Delivery(Receipt(holder, arrived.reply, block), source, id_, arrived.body)


def published(message: Outgoing, extra: Sequence[bytes] = ()) -> bytes:
    """The header block of a new message."""
    if not message.headers and message.key is None and not extra and _fits(message.id):
        return b"%s%s\r\n\r\n" % (PLAIN, message.id.encode())
    more = More(headers={name: text for name, text in message.headers.items() if not (_is_a_name(name) and _fits(text))})
    lines = [line(name.encode(), text) for name, text in message.headers.items() if name not in more.headers]
    if _fits(message.id):
        lines.append(line(ID, message.id))
    else:
        more.id = message.id
    if message.key is not None and _fits(message.key):
        lines.append(line(KEY, message.key))
    else:
        more.key = message.key
    if more != More():
        lines.append(MORE + b": " + msgspec.json.encode(more))
    return block([*lines, *extra])


def line(name: bytes, value: object) -> bytes:
    return b"%s: %s" % (name, str(value).encode("utf-8", "replace"))


def block(lines: Sequence[bytes]) -> bytes:
    return FIRST_LINE + b"".join([each + CRLF for each in lines]) + CRLF


def _fits(text: str) -> bool:
    """Whether it arrives as it is."""
    return text == text.strip() and "\r" not in text and "\n" not in text and "\0" not in text


def _is_a_name(text: str) -> bool:
    lowered = text.lower().encode()
    is_token = bool(text) and text.isascii() and text.isprintable() and not {*" :"} & {*text}
    return is_token and not lowered.startswith((b"nats-", *_OURS))


def copied(seen: Seen, old: bytes, counters: Counters, extra: Sequence[bytes] = ()) -> bytes:
    """The header block of a copy: what the sender wrote, with these counters."""
    lines = kept(old)
    if not any(each.startswith((ID + b":", MORE + b":")) for each in lines):
        lines.append(line(ID, seen.id))  # another program's, which had a place instead of a name
    return block([*lines, *counted(counters), line(STAMP, seen.stamp), *extra])


def kept(old: bytes) -> list[bytes]:
    """What the sender wrote, line by line."""
    lines: list[bytes] = []
    is_copy = CRLF + STAMP + b":" in old
    for each in old.split(CRLF)[1:]:
        if not each:
            continue
        if each[:5].lower() == b"nats-" or each.startswith(ATTEMPTS + b":"):
            if not is_copy:  # in a copy they are ours, or the server's
                lines.append(WAS + each)
        elif each.startswith((WAS, ID + b":", KEY + b":", MORE + b":")) or not each.startswith(_OURS):
            lines.append(each)
    return lines


def counted(counters: Counters) -> list[bytes]:
    """Counters as headers."""
    text = counters_text(counters, MOST_COUNTERS)
    return [] if text is None else [line(ATTEMPTS, counters.attempts), COUNTERS + b": " + text.encode()]


def fields(old: bytes) -> dict[bytes, bytes]:
    """The headers by name; of several with one name the first, which for ours is the one that counts."""
    return dict(reversed(pairs(old)))


def pairs(old: bytes) -> list[tuple[bytes, bytes]]:
    """Each header, in their order."""
    found: list[tuple[bytes, bytes]] = []
    for each in old.split(CRLF)[1:]:
        name, colon, value = each.partition(b":")
        if colon:
            found.append((name, value.strip(b" \t")))
    return found


def look_safely(old: bytes, where: Place) -> Seen:
    """As `look`; of a message that cannot be read, only its place is known."""
    bare = Seen(f"{where.stream}:{where.number}", None, NO_HEADERS, str(where), UNTRIED)
    return read_one(old, lambda each: look(each, where), lambda *_: bare)


def not_read(source: str, holder: object, arrived: Arrived, error: Exception) -> Unreadable:
    """The delivery of a message that could not be read."""
    receipt = Receipt(holder, arrived.reply, arrived.block)
    return unreadable(receipt, source, as_text(arrived.reply), arrived.body, arrived.block, error)


def look(old: bytes, where: Place) -> Seen:
    """Read an envelope, whatever is in it: what we do not understand is as if it were not there. May raise."""
    everything = pairs(old)
    found = dict(reversed(everything))
    rest = more(found.get(MORE))
    headers = {**text_headers(senders(everything, is_copy=STAMP in found)), **rest.headers}
    named = found.get(ID, found.get(WAS + MESSAGE_ID) if STAMP in found else found.get(MESSAGE_ID))
    key = as_text(found[KEY]) if KEY in found else rest.key
    unnamed = f"{where.stream}:{where.number}" if named is None else as_text(named)
    id_ = unnamed if rest.id is None else rest.id
    stamp = as_text(found[STAMP]) if STAMP in found else str(where)
    if has_foreign_attempts(old):
        headers[as_text(ATTEMPTS)] = as_text(found[ATTEMPTS])
    return Seen(id_, key, headers or NO_HEADERS, stamp, counters_or_untried(found.get(COUNTERS)) if STAMP in found else UNTRIED)


def has_foreign_attempts(old: bytes) -> bool:
    """Whether another program counts attempts: only copies of ours have a stamp. It is a header of the sender's then."""
    return CRLF + ATTEMPTS + b":" in old and CRLF + STAMP + b":" not in old


def senders(headers: Sequence[tuple[bytes, bytes]], *, is_copy: bool) -> list[tuple[str, bytes]]:
    """The sender's own headers, as they came."""
    found: list[tuple[str, bytes]] = []
    for name, value in headers:
        if not name.startswith(_OURS):
            if not (is_copy and name[:5].lower() == b"nats-"):
                found.append((as_text(name), value))
        elif name.startswith(WAS):
            found.append((as_text(name[len(WAS) :]), value))
    return found


def more(raw: bytes | None) -> More:
    """What no line could hold."""
    with suppress(*UNREADABLE):  # another program's header of that name
        return More() if raw is None else msgspec.json.decode(raw, type=More)
    return More()


_BILLION = 10**9


def native(delivery: Delivery) -> Native:
    """What NATS itself says about a message. Of a retry: what it said about the original."""
    receipt: Receipt = delivery.receipt
    where = place(receipt.handle)
    if is_plain(receipt.envelope):
        return Native(properties=_properties(delivery.source, where.stream, where.number, where.stored_at))
    found_pairs = pairs(receipt.envelope)
    found = dict(reversed(found_pairs))
    rest = more(found.get(MORE))
    key = found.get(KEY, None if rest.key is None else rest.key.encode())
    headers = [*senders(found_pairs, is_copy=STAMP in found), *((name, text.encode()) for name, text in rest.headers.items())]
    if has_foreign_attempts(receipt.envelope):
        headers.append((as_text(ATTEMPTS), found[ATTEMPTS]))
    stream, number, stored_at = look(receipt.envelope, where).stamp.rsplit(":", 2)
    return Native(key, tuple(headers), _properties(delivery.source, stream, int(number), int(stored_at)))


def _properties(source: str, stream: str, number: int, stored_at: int) -> dict[str, str | int | float]:
    """A source is one subject, so that is what the message was published to."""
    return {"subject": source, "stream": stream, "sequence": number, "timestamp": stored_at / _BILLION}
