"""What does the broker itself know about a message, and how is any of it shown as text?

`Native` is what the handler finds in `delivery.native`: keys and headers as they came, and what the broker calls its properties.
`delivery.key` and `delivery.headers` are text views of the same facts. One rule makes them, on every broker:

- text is text; of bytes that are no UTF-8 each wrong one is written as `\\xff`
- a number, a boolean, a list or a table is written as in JSON; a null is the empty text
- of several headers with one name the last counts

unpoison's own headers are in neither.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NO_PROPERTIES: Mapping[str, Any] = MappingProxyType({})


class Native(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the broker itself knows about a message. docs/native.md lists the properties of each broker.

    A value in `headers` is bytes wherever the broker has bytes or text, and a number, a boolean, None, a list or a dict where its
    headers have types. All headers of one name are there, in their order. Times among `properties` are seconds since 1970.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, Any], ...] = ()
    properties: Mapping[str, Any] = NO_PROPERTIES


UNTOLD = Native()
"""Of a message whose handler does not ask for its Delivery."""


def native_of_text(key: str | None, headers: Mapping[str, str], properties: Mapping[str, Any] = NO_PROPERTIES) -> Native:
    """For brokers that keep key and headers as text."""
    return Native(
        None if key is None else _bytes(key),
        tuple([(name, _bytes(text)) for name, text in headers.items()]) if headers else (),
        properties,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def as_text(value: object) -> str:
    """A key, a header or a field of whatever type, as text that can be stored and printed: the rule above."""
    if type(value) is bytes:  # nearly always: asked for every header of every record
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=as_text).encode("utf-8", "backslashreplace").decode()


def text_headers(headers: Iterable[tuple[str, Any]]) -> Mapping[str, str]:
    """The text view of headers."""
    return {name: as_text(value) for name, value in headers} or NO_HEADERS
