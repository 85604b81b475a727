"""How is a dead letter kept as a message, so that every tool can read it?

The body is the original body, the sender's headers are the sender's headers; what is known about the failure is JSON in the
header `x-unpoison-letter`, with the gist in headers of its own. What somebody else put there is read as a letter too.
"""

import hashlib
from typing import Any

import msgspec

from unpoison.brokers.nats import envelope
from unpoison.brokers.nats.envelope import MESSAGE_ID, Place, Seen, line
from unpoison.brokers.nats.url import is_group
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import ErrorClassification
from unpoison.model.message import Counters, Message
from unpoison.port.reading import as_text, read_one, unreadable_letter
from unpoison.port.serialization import UNREADABLE, letter_within

RECORD, GROUP = b"x-unpoison-letter", envelope.GROUP
MOST_RECORD = 32 * 1024
"""Bytes that the record may take: headers count towards what the server takes at most."""


def written(letter: DeadLetter, seen: Seen, old: bytes, group: str) -> bytes:
    """The header block of a letter. Stored twice, since an answer got lost, it is stored once."""
    counters = Counters(attempts=letter.attempts, replays=letter.replays)
    letter = msgspec.structs.replace(letter, original=letter.original | _place(seen))
    extra = [
        line(MESSAGE_ID, f"{seen.stamp}:{letter.replays}:{group}"),
        line(GROUP, group),
        line(b"x-unpoison-source", letter.source),
        line(b"x-unpoison-error", _one_line(f"{letter.error_type}: {letter.error}")),
        line(b"x-unpoison-reason", _one_line(letter.reason)),
        RECORD + b": " + letter_within(letter, MOST_RECORD),
    ]
    return envelope.copied(seen, old, counters, extra)


def _place(seen: Seen) -> dict[str, str | int]:
    """Where the original stood, from its stamp."""
    stream, number, _ = (*seen.stamp.rsplit(":", 2), "", "")[:3]
    return {"stream": stream, "sequence": int(number)} if number.isascii() and number.isdecimal() else {}


def _one_line(text: str) -> str:
    return " ".join(text[:500].split())


class Found(msgspec.Struct):
    """A letter in its stream, with what is needed to send it again."""

    number: int
    block: bytes
    seen: Seen
    group: str
    letter: DeadLetter


def read(source: str, where: Place, old: bytes, body: bytes, *, number: int, state: str, group: str) -> Found:
    """A letter, or one that was dealt with. `number` is its number as a letter; `group` that of one which names none."""
    found = envelope.fields(old)
    seen = envelope.look_safely(old, where)
    message = Message(seen.id, source, body, seen.key, seen.headers)
    letter = read_one(
        found,
        lambda found: _known(source, found) or _foreign(message, seen, where),
        lambda _, error: unreadable_letter("", state, message, error),
    )
    named = as_text(found.get(GROUP, b""))
    named = named if is_group(named) else group
    original = letter.original | {"group": named}
    letter = msgspec.structs.replace(letter, id=f"{source}-{number}", state=state, message=message, original=original)
    return Found(number, old, seen, named, letter)


def record_of(old: bytes) -> bytes | None:
    """What a message that is one of our letters tells of itself; None for any other."""
    found = envelope.fields(old) if RECORD in old else {}
    return found.get(RECORD) if envelope.STAMP in found else None


def _known(source: str, found: dict[bytes, bytes]) -> DeadLetter | None:
    """What we wrote about it ourselves, if we did."""
    if RECORD not in found:
        return None
    bare: dict[str, Any] = {"id": "", "source": source, "key": None, "headers": {}, "body": b""}
    try:
        return msgspec.convert({**msgspec.json.decode(found[RECORD]), "message": bare}, DeadLetter)
    except UNREADABLE:
        return None  # somebody else's header of that name


def _foreign(message: Message, seen: Seen, where: Place) -> DeadLetter:
    rule = "something else than unpoison put it here"
    at = where.stored_at / 1e9
    return DeadLetter(
        message=message,
        attempts=seen.counters.charged,
        classification=str(ErrorClassification.UNKNOWN),
        rule=rule,
        reason=rule,
        error_type="nats.Unknown",
        error=rule,
        fingerprint=hashlib.blake2b(rule.encode(), digest_size=6).hexdigest(),
        first_failed_at=seen.counters.first_failed_at or at,
        last_failed_at=at,
        history=seen.counters.history,
        replays=seen.counters.replays,
    )
