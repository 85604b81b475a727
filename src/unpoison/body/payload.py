"""Encodes a payload for sending.

Bytes and text go out as they are, anything else as JSON. What the receiver's guard would refuse is refused here, where
the sender can still do something about it: NaN and infinity, which msgspec would write as null, and integers beyond 64 bits.
JSON text from others, as on the command line, is checked by the same rules (`why_unsendable`).
"""

import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from time import time_ns
from typing import Any

import msgspec

from unpoison.body.json_text import why_not, wide_integer
from unpoison.errors import PayloadError
from unpoison.model.failure import text_of, type_name
from unpoison.model.message import NO_HEADERS

_AS_IT_IS = (str, bytes, bytearray, memoryview)
_CONTAINERS = frozenset((dict, list, tuple))

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_parse = msgspec.json.Decoder().decode
_BEYOND = ("integer-range", "float-range")

# How MessagePack begins a float with all bits of the exponent set, and hardly any other.
_POSITIVE, _NEGATIVE = b"\xcb\x7f", b"\xcb\xff"

# Of the digit that holds the variant of a UUID only the lower two bits are free.
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def encode(payload: Any) -> bytes:
    """The body to send for this payload, which is left as it is. Raises PayloadError if there is none."""
    if isinstance(payload, _AS_IT_IS):
        return _as_it_is(payload)
    try:
        body = _to_json(payload)
    except RecursionError as error:
        raise PayloadError(
            f"payload of type {type_name(type(payload))!r} contains itself or is nested too deep for JSON. "
            "Send ids instead of whole objects."
        ) from error
    except Exception as error:  # enc_hook and properties are user code
        raise _no_json(payload, error) from error
    # partition and not `in`: bytes.__contains__ first tries its operand as a number, which costs more than the search.
    if body.partition(b"null")[1]:
        _refuse_nan(payload)
    if wide := wide_integer(body):
        raise PayloadError(f"{_too_wide(wide)} Send it as text.")
    return body


def why_unsendable(body: bytes) -> str | None:
    """What is wrong with a JSON text: it is not JSON, or `encode` would have refused its value. None if it can be sent."""
    try:
        _parse(body)
    except Exception as error:
        unfit = why_not(body, error)
        half = " (a lone surrogate, half of a character, stands in a string)" if _SURROGATE.search(body) else ""
        return f"{'cannot be sent' if unfit.rule in _BEYOND else 'is not JSON'}: {unfit.text}{half}"
    wide = wide_integer(body)
    return f"cannot be sent: {_too_wide(wide)}" if wide else None


def _too_wide(wide: re.Match[bytes]) -> str:
    digits = _shown(wide[0].decode())
    return f"integer {digits} in the payload does not fit into 64 bits, so receivers would refuse it."


def check_size(body: bytes, limit: int | None) -> bytes:
    """The body, if consumers with this limit would take it."""
    if limit is not None and len(body) > limit:
        raise PayloadError(
            f"The message has {len(body):,} bytes, the limit is {limit:,} (max_body): consumers would refuse it. Send a "
            f"reference to where it is stored, or raise max_body (UNPOISON_MAX_BODY) here and in the consumers."
        )
    return body


def check_several(source: str, payloads: object) -> None:
    """Refuse what is one payload and would be taken apart: the keys of a dict, the letters of a text."""
    is_one = isinstance(payloads, (Mapping, *_AS_IT_IS)) or hasattr(payloads, "__pydantic_serializer__")
    if is_one or not isinstance(payloads, Iterable):
        raise PayloadError(
            f"publish_many takes several payloads, such as a list, and got one of type {type_name(type(payloads))!r}: "
            f"{_shown(payloads)}. For one message: app.publish({source!r}, payload); for several put them into a list."
        )


def check_text(name: str, text: str | None) -> None:
    """Lone surrogates cannot be stored or sent anywhere."""
    if text is None:
        return
    if not isinstance(text, str):
        raise PayloadError(f"{name} must be text, got {text!r}. Turn it into a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(f"{name} {text!r} cannot be written as UTF-8 ({error.reason}). Send proper text.") from None


def checked_headers(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    if not headers:
        return NO_HEADERS
    if not isinstance(headers, Mapping):
        raise PayloadError(f"Headers must be text to text, got {headers!r}. Pass a dict.")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise PayloadError(f"Headers must be text to text, got {name!r}: {value!r}. Turn the value into a string.")
        check_text("header name", name)
        check_text(f"header {name!r}", value)
    return dict(headers)


def new_id() -> str:
    """A message id: UUID version 7, so that ids sort by the millisecond they were made in."""
    text = ((time_ns() // 1_000_000).to_bytes(6) + os.urandom(10)).hex()
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:]}"


def new_ids(n: int) -> list[str]:
    """`n` message ids of one millisecond, in no order among themselves. Forked processes draw different ones."""
    stamp = f"{time_ns() // 1_000_000:012x}"
    head = f"{stamp[:8]}-{stamp[8:]}-7"
    noise = os.urandom(10 * n).hex()
    return [
        f"{head}{noise[i : i + 3]}-{_VARIANT[noise[i + 3]]}{noise[i + 4 : i + 7]}-{noise[i + 7 : i + 19]}"
        for i in range(0, 20 * n, 20)
    ]


def _as_it_is(payload: str | bytes | bytearray | memoryview) -> bytes:
    if not isinstance(payload, str):
        return bytes(payload)
    try:
        return payload.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(
            f"text {_shown(payload)} has a lone surrogate at index {error.start}, which UTF-8 cannot carry. "
            "Repair the text, or send bytes."
        ) from error


def _foreign(value: Any) -> Any:
    """What msgspec does not know: pydantic models, and subclasses of plain values such as numpy.float64."""
    if hasattr(value, "__pydantic_serializer__"):
        return value.model_dump(mode="json")
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"{type_name(type(value))} has no JSON form")


_to_json = msgspec.json.Encoder(enc_hook=_foreign).encode
_to_msgpack = msgspec.msgpack.Encoder(enc_hook=_foreign).encode


def _refuse_nan(payload: Any) -> None:
    """The body holds a null: was it None, or a number that JSON does not have?"""
    if not _may_hold_nan(payload):
        return
    found = _not_finite([msgspec.to_builtins(payload, enc_hook=_foreign)])
    if found is not None:
        number, *keys = found
        raise PayloadError(f"{_path(keys[-2::-1])} is {number!r}, and JSON has no such number. Send None or text instead.")


def _may_hold_nan(payload: Any) -> bool:
    """A bound that is cheaper than a look at each value: MessagePack keeps NaN and infinity as they are."""
    try:
        packed = _to_msgpack(payload)
    except Exception:  # an integer beyond 64 bits, which has a refusal of its own
        return True
    return bool(packed.partition(_POSITIVE)[1] or packed.partition(_NEGATIVE)[1])


def _not_finite(value: Any) -> list[Any] | None:
    """The first NaN or infinity in a container of plain values with the keys that lead to it, innermost first."""
    for key, child in value.items() if type(value) is dict else enumerate(value):
        kind = type(child)
        if kind is float:
            if not isfinite(child):
                return [child, key]
        elif kind in _CONTAINERS and (found := _not_finite(child)) is not None:
            return [*found, key]
    return None


def _no_json(payload: Any, error: Exception) -> PayloadError:
    keys: list[Any] = []
    while (inner := next(_unsendable(payload), None)) is not None:
        key, payload, error = inner
        keys.append(key)
    return PayloadError(
        f"{_path(keys)} cannot be sent as JSON: {_shown(payload)} of type {type_name(type(payload))!r} ({text_of(error)}). "
        "Convert it to plain values first, or send bytes."
    )


def _unsendable(value: Any) -> Iterator[tuple[Any, Any, Exception]]:
    """The parts of a value that fail by themselves."""
    for key, child in _parts(value):
        try:
            _to_json(child)
        except Exception as error:
            yield key, child, error


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    names: Iterable[str] = getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ()))
    return [(name, getattr(value, name, None)) for name in names]


def _path(keys: Iterable[Any]) -> str:
    return "payload" + "".join(f"[{_shown(key)}]" for key in keys)


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # a __repr__ of the user's, or an integer too long to print
        return f"<{type(value).__name__}>"
