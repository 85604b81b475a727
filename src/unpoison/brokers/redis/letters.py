"""How is a dead letter kept as an entry of a stream, so that every tool can read it?

The first fields are the message as its sender wrote it (`id`, `body`, `key`, `headers`), then comes the gist (`error`, `reason`,
`group`), then all that is known about the failure as JSON (`record`). Where the sender's entry had other fields, they are kept as
they were, in `fields`.
"""

from collections.abc import Sequence

import msgspec

from unpoison.brokers.redis.envelope import STREAM_ID, fields_of
from unpoison.brokers.redis.netstrings import packed, unpacked
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message
from unpoison.port import serialization
from unpoison.port.reading import as_text, read_one

_UNKNOWN = (
    '{"attempts":0,"classification":"unknown","rule":"","reason":"it was put here by another program",'
    '"error_type":"","error":"","first_failed_at":0,"last_failed_at":0}'
)


def fields_of_letter(letter: DeadLetter, original: Sequence[bytes], group: str, no: bytes) -> list[bytes]:
    """The entry of a letter. `original` are the fields that the message had in the stream, and `no` its number. A number that
    the stream did not give is ours, and means nothing to anybody else."""
    if STREAM_ID.fullmatch(entry := as_text(no)):
        letter = msgspec.structs.replace(letter, original=letter.original | {"entry": entry})
    fields = fields_of(letter.message)
    same = fields == list(original)
    fields += [b"error", f"{letter.error_type}: {letter.error}"[:1000].encode(errors="backslashreplace")]
    fields += [b"reason", letter.reason.encode(errors="backslashreplace"), b"group", group.encode()]
    fields += [b"replays", str(letter.replays).encode(), b"fingerprint", letter.fingerprint.encode()]
    fields += [b"record", serialization.record_text(letter).encode()]
    return fields if same else [*fields, b"fields", packed(original)]


def letter_of(source: str, no: bytes, state: str, fields: Sequence[bytes]) -> DeadLetter:
    """The letter that an entry holds. One that somebody else wrote there is shown as far as it can be understood."""
    values = dict(zip(fields[::2], fields[1::2], strict=False))

    def text(name: bytes) -> str | None:
        return None if name not in values else str(values[name], "utf-8", "backslashreplace")

    record = text(b"record") or _UNKNOWN
    replays = read_one(text(b"replays") or "0", int, lambda *_: 0)
    row = (no.decode(), state, replays, text(b"fingerprint") or "", text(b"id") or no.decode())
    return serialization.letter(source, (*row, text(b"key"), text(b"headers"), values.get(b"body", b""), record))


def original_of(message: Message, fields: Sequence[bytes]) -> list[bytes]:
    """The fields with which a letter's message goes to its source again."""
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    known = fields_of(message)
    return read_one(values[b"fields"], unpacked, lambda *_: known) if b"fields" in values else known


def group_of(fields: Sequence[bytes], default: str) -> str:
    """The group that gave the message up. It goes back there and nowhere else: others have handled it, or will."""
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    return as_text(values.get(b"group", default.encode()))


def number(source: str, letter_id: str) -> str | None:
    """The number of a letter in its stream; None for an id that is not one of this DLQ."""
    no = letter_id.removeprefix(f"{source}-")
    return no if letter_id.startswith(f"{source}-") and STREAM_ID.fullmatch(no) else None


def padded(no: str) -> str:
    """The same, so that it sorts by its letters as it does by its value."""
    first, _, second = no.partition("-")
    return f"{first:0>20}-{second:0>20}"


def unpadded(no: bytes) -> bytes:
    first, _, second = no.partition(b"-")
    return (first.lstrip(b"0") or b"0") + b"-" + (second.lstrip(b"0") or b"0")
