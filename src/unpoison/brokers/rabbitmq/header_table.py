"""Read a table of headers that may hold anything, and write it without changing what others wrote.

A table is split into names and raw values; only what is asked for is decoded, and what cannot be decoded stays as it came. So a
header of a kind that we have never seen survives retry, dead letter and replay bit for bit.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from unpoison.model.message import as_text

_SIZES = {"t": 1, "b": 1, "B": 1, "s": 2, "U": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5, "T": 8, "V": 0}
_NUMBERS = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "U": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "L": ">q",
    "f": ">f",
    "d": ">d",
    "T": ">Q",
}
_WIDTHS = {ord(kind): 1 + size for kind, size in _SIZES.items()}
_LONG, _TEXT = frozenset(b"SxAF"), ord("S")
_length = struct.Struct(">I").unpack_from


class Header(NamedTuple):
    """One header: its name, and its value with the byte before it that tells the kind."""

    name: bytes
    value: bytes


_new_header = tuple.__new__  # half the time of calling Entry, which is most of what a pass over many letters takes


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
        size = 5 + _length(data, at + 1)[0] if at + 5 <= end and data[at] == _TEXT else _size(data, at)
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
        return int(5 + _length(data, at + 1)[0])
    return _WIDTHS.get(kind)


def join(entries: Iterable[Header], rest: bytes = b"") -> bytes:
    data = b"".join([bytes((len(name),)) + name + value for name, value in entries]) + rest
    return struct.pack(">I", len(data)) + data


def value(raw: bytes) -> Any:
    """The value as Python has it; the raw bytes where it has none that is sure to fit."""
    kind, data = chr(raw[0]), raw[1:]
    if kind in _NUMBERS:
        return struct.unpack(_NUMBERS[kind], data)[0]
    return _DECODERS[kind](data) if kind in _DECODERS else data[4:]


def _text(data: bytes) -> str | bytes:
    try:
        return data[4:].decode()
    except UnicodeDecodeError:
        return data[4:]


def _decimal(data: bytes) -> float:
    places, number = struct.unpack(">Bi", data)
    return float(number / 10**places)


def _inner(data: bytes) -> dict[str, Any]:
    return {as_text(name): value(inner) for name, inner in split(data[4:]).entries}


def _values(data: bytes) -> list[Any]:
    return [value(raw) for raw in _items(data)]


def _items(data: bytes) -> Iterator[bytes]:
    """The values in an array, each with its kind before it."""
    at = 4
    while at < len(data):
        size = _size(data, at)
        if size is None:
            break
        yield data[at : at + size]
        at += size


def native(raw: bytes) -> Any:
    """The value as `Native` has it: texts are bytes, as they came."""
    if raw[0] == _TEXT:
        return raw[5:]
    kind, data = chr(raw[0]), raw[1:]
    if kind == "F":
        return {as_text(name): native(inner) for name, inner in split(data[4:]).entries}
    if kind == "A":
        return [native(item) for item in _items(data)]
    return value(raw)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "S": _text,
    "t": lambda data: data != b"\x00",
    "D": _decimal,
    "V": lambda _: None,
    "F": _inner,
    "A": _values,
}


def text(raw: bytes) -> str:
    """The value as text, for people and for `Delivery.headers`."""
    return raw[5:].decode("utf-8", "backslashreplace") if raw[0] == _TEXT else as_text(value(raw))


def json_text(raw: bytes) -> bytes | str:
    """The value for a reader of JSON, which takes bytes: decoding them first takes time."""
    return raw[5:] if raw[0] == _TEXT else text(raw)


def header(name: str, content: str | float) -> Header:
    return Header(name.encode(), _encoded(content))


def _encoded(content: str | float) -> bytes:
    if isinstance(content, bool):
        return b"t\x01" if content else b"t\x00"
    if isinstance(content, int):
        return b"I" + struct.pack(">i", content) if -(2**31) <= content < 2**31 else b"l" + struct.pack(">q", content)
    if isinstance(content, float):
        return b"d" + struct.pack(">d", content)
    data = content.encode()
    return b"S" + struct.pack(">I", len(data)) + data


def array(texts: Iterable[str]) -> bytes:
    data = b"".join(map(_encoded, texts))
    return b"A" + struct.pack(">I", len(data)) + data
