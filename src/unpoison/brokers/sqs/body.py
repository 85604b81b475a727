"""How does any body travel, when SQS takes text only?

Text goes as it is. What SQS refuses (bytes that are no text, control characters, nothing at all) goes as base64, and what is too
large for it is compressed first. The envelope says which: `encoding`. It arrives bit for bit.
"""

import base64
import binascii
import re
import zlib

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


def fits(text: str) -> bool:
    """Whether SQS takes every character of it."""
    return not _REFUSED.search(text)


def decoded(text: str, encoding: str | None) -> bytes:
    """The body. What claims to be encoded and is not is taken as it is: it is somebody else's."""
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
