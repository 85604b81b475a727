"""What does a letter say that another program put into the DLQ, and where does it go back to?

Redis itself gives nothing up. A program may have put an envelope there, as the body or with its members as the fields of the
entry: then the message is what is inside.
"""

from collections.abc import Mapping, Sequence

import msgspec

from unpoison.model.message import Message
from unpoison.port.foreign import celery, json_form
from unpoison.port.foreign.told import Told

RULE = "it was put here by another program"
KIND = "redis.Unknown"
_VALUE = b"original_value"


def told(body: bytes, headers: Mapping[str, str] = {}) -> Told:
    """What this message says, which is none of our letters. It may raise."""
    found = celery.with_task(json_form.read(body, has_headers=False), celery.facts(headers, body), RULE)
    return found or Told(rule=RULE)


def told_by_entry(carried: Message, values: Mapping[bytes, bytes]) -> Told:
    """The same of an entry of a stream. In fields of its own a value may be bytes that no JSON could hold. It may raise."""
    found = told(carried.body, carried.headers)
    is_text = found.original.get("value_encoding") == "text"
    if found.content is None or b"body" in values or not is_text:
        return found
    return msgspec.structs.replace(found, content=msgspec.structs.replace(found.content, body=values.get(_VALUE, b"")))


def no_target(kind: bytes) -> str:
    """Why a key of this type is none to which a message can be sent."""
    return "there is no such key" if kind == b"none" else f"it is neither a stream nor a list, but a {kind.decode()}"


def origin(source: str, found: Told, own: Sequence[str]) -> str:
    """The stream or list that the message came from. `own` are the keys of the source: all but the first are unpoison's own."""
    return source if found.source in ("", *own) else found.source
