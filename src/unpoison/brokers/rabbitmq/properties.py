"""Read and write what stands beside a message's body: its properties, and the table of headers among them.

Anything may be in there. Properties stay bytes, field by field, and a table is split into names and raw values; only what is
asked for is decoded. So a header of a kind that we have never seen survives retry, dead letter and replay bit for bit.

Copies keep what the sender set, but for three fields that would do harm on them: an expiration (the copy would vanish, so it is
only noted), the user id (the server refuses one that is not ours) and the delivery mode (a copy is always persistent).
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from unpoison.brokers.rabbitmq.wire import short
from unpoison.model.message import as_text
from unpoison.port.reading import read_one

_NUMBERS: Final = {
    kind: struct.Struct(f">{form}")
    for kind, form in zip(b"bBsUuIilLfdT", ("b", "B", "h", "h", "H", "i", "I", "q", "q", "f", "d", "Q"), strict=True)
}
_WIDTHS: Final = {**{kind: 1 + form.size for kind, form in _NUMBERS.items()}, ord("t"): 2, ord("D"): 6, ord("V"): 1}
_LONG, _TEXT = frozenset(b"SxAF"), ord("S")
_unpacked_length, _unpacked_flags = struct.Struct(">I").unpack_from, struct.Struct(">H").unpack_from


class Header(NamedTuple):
    """One header: its name, and its value with the byte before it that tells the kind."""

    name: bytes
    value: bytes


_new_header = tuple.__new__  # half the time of calling Header, which is most of what a pass over many letters takes


class HeaderTable(NamedTuple):
    """The headers that could be split, and the rest that could not."""

    entries: tuple[Header, ...] = ()
    rest: bytes = b""


def split(data: bytes) -> HeaderTable:
    entries: list[Header] = []
    start, end = 0, len(data)
    while start < end:
        at = start + 1 + data[start]
        # Most values are texts: a pass over many letters spends much of its time here.
        size = 5 + _unpacked_length(data, at + 1)[0] if at + 5 <= end and data[at] == _TEXT else _size(data, at)
        if size is None or at + size > end:
            return HeaderTable(tuple(entries), data[start:])
        entries.append(_new_header(Header, (data[start + 1 : at], data[at : at + size])))
        start = at + size
    return HeaderTable(tuple(entries))


def _size(data: bytes, at: int) -> int | None:
    """How many bytes the value there takes, its kind included; None if it is of no known kind."""
    if at >= len(data):
        return None
    kind = data[at]
    if kind in _LONG and at + 5 <= len(data):
        return int(5 + _unpacked_length(data, at + 1)[0])
    return _WIDTHS.get(kind)


def value(raw: bytes) -> Any:
    """The value as Python has it; the raw bytes where it has none that is sure to fit."""
    kind, data = raw[0], raw[1:]
    if kind in _NUMBERS:
        return _NUMBERS[kind].unpack(data)[0]
    return _DECODERS[chr(kind)](data) if chr(kind) in _DECODERS else data[4:]


def _text(data: bytes) -> str | bytes:
    try:
        return data[4:].decode()
    except UnicodeDecodeError:
        return data[4:]


def _decimal(data: bytes) -> float:
    places, number = struct.unpack(">Bi", data)
    return float(number / 10**places)


def _table(data: bytes, decoded: Callable[[bytes], Any] = value) -> dict[str, Any]:
    return {as_text(name): decoded(inner) for name, inner in split(data[4:]).entries}


def _items(data: bytes, decoded: Callable[[bytes], Any] = value) -> list[Any]:
    found, at = [], 4
    while at < len(data) and (size := _size(data, at)) is not None:
        found.append(decoded(data[at : at + size]))
        at += size
    return found


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "S": _text,
    "t": lambda data: data != b"\x00",
    "D": _decimal,
    "V": lambda _: None,
    "F": _table,
    "A": _items,
}


def native(raw: bytes) -> Any:
    """The value as `Native` has it: texts are bytes, as they came."""
    if raw[0] == _TEXT:
        return raw[5:]
    nested = _NESTED.get(raw[0])
    return nested(raw[1:], native) if nested else value(raw)


_NESTED: Final = {ord("F"): _table, ord("A"): _items}


def shown(table: HeaderTable) -> tuple[tuple[str, Any], ...]:
    """All of them for people: a value that cannot be decoded as its bytes."""
    return tuple((as_text(name), read_one(raw, value, lambda raw, _: raw)) for name, raw in table.entries)


def text(raw: bytes) -> str:
    """The value as text, for people and for `Delivery.headers`."""
    return raw[5:].decode("utf-8", "backslashreplace") if raw[0] == _TEXT else as_text(value(raw))


def text_of(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """The text of this header; None if it is not there."""
    return text(headers[name]) if name in headers else None


def json_text(raw: bytes) -> bytes | str:
    """The value for a reader of JSON, which takes bytes: decoding them first takes time."""
    return raw[5:] if raw[0] == _TEXT else text(raw)


def header(name: bytes, content: str | float) -> Header:
    return Header(name, _encoded(content))


def _encoded(content: str | float) -> bytes:
    if isinstance(content, str):
        data = content.encode()
        return b"S" + struct.pack(">I", len(data)) + data
    if isinstance(content, bool):
        return b"t\x01" if content else b"t\x00"
    if isinstance(content, int):
        return b"I" + struct.pack(">i", content) if -(2**31) <= content < 2**31 else b"l" + struct.pack(">q", content)
    return b"d" + struct.pack(">d", content)


def array(texts: Iterable[str]) -> bytes:
    data = b"".join(map(_encoded, texts))
    return b"A" + struct.pack(">I", len(data)) + data


_FIELDS: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_FLAGS: Final = tuple((0x8000 >> position, name) for position, name in enumerate(_FIELDS))
PLAIN_FIELDS: Final = tuple(name for name in _FIELDS if name != "headers")
_FIXED: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_DROPPED: Final = frozenset(("delivery_mode", "user_id"))
_PERSISTENT = b"\x02"
MOST = 2**32 - 1
"""Milliseconds after which a message can expire."""


class Properties(msgspec.Struct, frozen=True):
    """The fields we read, and the others as they came."""

    id: str | None = None
    headers: HeaderTable = HeaderTable()
    expiration: str | None = None
    others: tuple[tuple[str, bytes], ...] = ()


NONE = Properties()


def read(data: bytes) -> Properties:
    id_, headers, expiration = None, HeaderTable(), None
    others: list[tuple[str, bytes]] = []
    for name, raw in fields(data):
        if name == "headers":
            headers = split(raw[4:])
        elif name == "message_id":
            id_ = as_text(raw[1:])
        elif name == "expiration":
            expiration = as_text(raw[1:])
        elif name not in _DROPPED:
            others.append((name, raw))
    return Properties(id_, headers, expiration, tuple(others))


def fields(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The fields that are set, each as it came: a text has its length before it."""
    at = 2
    for name in _present(*_unpacked_flags(data)):
        if name == "headers":
            end = at + 4 + _unpacked_length(data, at)[0]
        else:
            end = at + (_FIXED[name] if name in _FIXED else 1 + data[at])
        yield name, data[at:end]
        at = end


def all_fields(data: bytes) -> tuple[dict[str, str | int | None], HeaderTable]:
    """All fields as text or numbers, with None for those that are not set, and the headers."""
    found: dict[str, str | int | None] = dict.fromkeys(PLAIN_FIELDS)
    headers = HeaderTable()
    for name, raw in fields(data):
        if name == "headers":
            headers = split(raw[4:])
        else:
            found[name] = int.from_bytes(raw, "big") if name in _FIXED else as_text(raw[1:])
    return found, headers


def is_sound(data: bytes) -> bool:
    """Whether a server can read these properties. It closes the connection over those that it cannot. May raise."""
    found = dict(fields(data))
    if _unpacked_flags(data)[0] & 0b11 or 2 + sum(map(len, found.values())) != len(data):
        return False
    table = found.pop("headers", bytes(4))
    are_whole = all(len(raw) == _FIXED.get(name, 1 + raw[0]) for name, raw in found.items())
    return are_whole and len(table) == 4 + _unpacked_length(table)[0] and _is_sound(split(table[4:]))


def _is_sound(table: HeaderTable) -> bool:
    return not table.rest and all(_is_sound_value(raw) for _, raw in table.entries)


def _is_sound_value(raw: bytes) -> bool:
    if raw[0] == ord("F"):
        return _is_sound(split(raw[5:]))
    if raw[0] != ord("A"):
        return True
    at = 5
    while at < len(raw) and (size := _size(raw, at)) is not None and _is_sound_value(raw[at : at + size]):
        at += size
    return at == len(raw)


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[str, ...]:
    return tuple(name for flag, name in _FLAGS if flags & flag)


def expiring(seconds: float, entries: Sequence[Header] = ()) -> bytes:
    """Properties of a message that the server deletes after so long."""
    return write(None, entries, Properties(others=(("expiration", short(str(min(MOST, int(seconds * 1000))))),)))


def of_another_user() -> bytes:
    """Properties of a message that the server refuses, once it has found that we may write where it goes."""
    return write(None, (), Properties(others=(("user_id", short("another user")),)))


def write(id_: str | None, entries: Sequence[Header] = (), like: Properties = NONE) -> bytes:
    """Properties of a persistent message: these headers, this id, and the other fields of `like`."""
    found = dict(like.others)
    found["delivery_mode"] = _PERSISTENT
    if entries or like.headers.rest:
        table = b"".join([bytes((len(name),)) + name + value for name, value in entries]) + like.headers.rest
        found["headers"] = struct.pack(">I", len(table)) + table
    if id_ is not None:
        found["message_id"] = short(id_)
    flags, values = 0, []
    for flag, name in _FLAGS:
        if name in found:
            flags |= flag
            values.append(found[name])
    return struct.pack(">H", flags) + b"".join(values)
