"""How does a letter stand in a line of a file, so that it is the same letter again when it is read?

A line is one JSON object that people and other tools can read, as `unpoison dlq show --json` prints it. What makes it exact is in
`exact`, with the body only where that is no text.
"""

import base64
import json
from typing import Any

import msgspec

from unpoison.errors import PayloadError
from unpoison.model.dead_letter import WholeLetter
from unpoison.model.message import Message
from unpoison.model.wording import one_line
from unpoison.store.letters.rows import packed_headers, read_headers
from unpoison.store.letters.values import StoredLetter

EXACT, HEADERS = "exact", "headers"


def line_of(stored: StoredLetter) -> bytes:
    """With its end. Numbers of any length are written, which not every writer of JSON does."""
    message = stored.letter.message
    shown = stored.letter.as_json() | {"place": stored.place}
    body = message.body if "encoding" in shown else b""
    bare = Message(message.id, message.source, body, message.key, dict(message.headers), message.is_tombstone)
    whole = msgspec.structs.replace(stored.whole, headers=(), letter=msgspec.structs.replace(stored.letter, message=bare))
    exact = msgspec.to_builtins(whole) | {HEADERS: base64.b64encode(packed_headers(stored.headers)).decode()}
    return json.dumps(shown | {EXACT: exact}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def letter_of(line: bytes) -> WholeLetter:
    """The letter of a line. Raises PayloadError if it is none."""
    try:
        return _letter(json.loads(line))
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        begins = one_line(line[:80].decode("utf-8", "replace"))
        raise PayloadError(f"This is no letter that unpoison dlq export has written: {begins} … ({error!r})") from None


def _letter(found: dict[str, Any]) -> WholeLetter:
    exact = found[EXACT]
    headers = read_headers(base64.b64decode(exact[HEADERS], validate=True))
    whole = msgspec.convert(exact | {HEADERS: ()}, WholeLetter)
    m = whole.letter.message
    body = m.body if "encoding" in found or found["body"] is None else found["body"].encode()
    message = Message(m.id, m.source, body, m.key, m.headers, m.is_tombstone)
    return msgspec.structs.replace(whole, headers=headers, letter=msgspec.structs.replace(whole.letter, message=message))
