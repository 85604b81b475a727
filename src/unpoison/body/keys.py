"""Finds the key of a message whose producer did not set one.

`key_from` names it as data ("header:tenant", "body:customer.id"), since the consumer needs the key before any user code
sees the message.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from unpoison.errors import ConfigError
from unpoison.model.message import Delivery

KeyReader = Callable[[Delivery], Delivery]


def key_reader(key_from: str, source: str) -> KeyReader:
    """A function that gives a delivery its key, where it has none and one can be found."""
    kind, _, path = key_from.partition(":") if isinstance(key_from, str) else ("", "", "")
    if kind not in ("header", "body") or not path or not all(path.split(".")):
        raise ConfigError(f"Consumer {source!r}: key_from must be 'header:name' or 'body:path.to.field', got {key_from!r}.")
    find: Callable[[Delivery], str | None] = (
        _in_body(path.split(".")) if kind == "body" else lambda delivery: delivery.headers.get(path)
    )

    def read(delivery: Delivery) -> Delivery:
        if delivery.key is not None:
            return delivery
        key = find(delivery)
        return delivery if key is None else msgspec.structs.replace(delivery, key=key)

    return read


def _in_body(path: Sequence[str]) -> Callable[[Delivery], str | None]:
    decode = msgspec.json.Decoder().decode

    def find(delivery: Delivery) -> str | None:
        try:
            value: Any = decode(delivery.body)
        except Exception:
            return None  # no key can be found in what is not JSON; the guard will say so
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    return find
