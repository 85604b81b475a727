"""In which form is a body kept?

Bytes come back as they were. A body that is text is kept as text, so that filters and people can read it where it lies; only JSON
stays so whatever its size, other bodies are compressed if that saves something.
"""

import zlib
from typing import NamedTuple

import msgspec

from unpoison.model.message import Message

JSON, TEXT, BYTES, PACKED_TEXT, PACKED_BYTES, TOMBSTONE = "json", "text", "bytes", "zlib-text", "zlib-bytes", "tombstone"

PACKED_FROM = 4_096
"""Bytes from which a body that is not JSON is compressed."""
_WORTH = 0.8
"""It must be so much smaller then."""

_SQUEEZED_FROM = 512
_PLAIN, _PACKED = b"\0", b"\1"

_decode = msgspec.json.Decoder().decode


class Kept(NamedTuple):
    """A body in the database."""

    form: str
    text: str | None = None
    data: bytes | None = None


def kept(message: Message) -> Kept:
    body = message.body
    if message.is_tombstone:
        return Kept(TOMBSTONE, data=body or None)
    text = _text(body)
    if text is not None and is_json(body):
        return Kept(JSON, text)
    if len(body) >= PACKED_FROM:
        packed = zlib.compress(body, 1)
        if len(packed) < _WORTH * len(body):
            return Kept(PACKED_BYTES if text is None else PACKED_TEXT, data=packed)
    return Kept(BYTES, data=body) if text is None else Kept(TEXT, text)


def squeezed(data: bytes) -> bytes:
    """What a broker knew of a letter, smaller if that is possible: most of it is what the letter says too."""
    packed = zlib.compress(data, 1) if len(data) >= _SQUEEZED_FROM else data
    return _PACKED + packed if len(packed) < _WORTH * len(data) else _PLAIN + data


def restored(data: bytes) -> bytes:
    """Raises ValueError if somebody has changed it."""
    try:
        return zlib.decompress(data[1:]) if data[:1] == _PACKED else data[1:]
    except zlib.error as error:
        raise ValueError(str(error)) from error


def body_of(kept: Kept) -> bytes:
    if kept.form in (PACKED_TEXT, PACKED_BYTES):
        return zlib.decompress(kept.data or b"")
    return (kept.data or b"") if kept.text is None else kept.text.encode()


def is_json(body: bytes) -> bool:
    """Whether a filter may find members in it. How deep it may be nested depends on where it is read: such a one may be."""
    try:
        _decode(body)
    except RecursionError:
        return True
    except (msgspec.MsgspecError, ValueError, MemoryError):
        return False
    return True


def _text(body: bytes) -> str | None:
    """The body as text that a database can hold, which gives the same bytes again."""
    if b"\0" in body:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
