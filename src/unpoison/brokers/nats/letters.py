"""Write a dead letter as a message that every tool can read, and read it back.

The body is the original body, the sender's headers are the sender's headers; what is known about the failure is JSON in the
header `x-unpoison-letter`, with the gist in headers of its own. What another program put there is read as a letter too.
"""

import msgspec

from unpoison.brokers.nats import envelope
from unpoison.brokers.nats.envelope import MESSAGE_ID, Place, Seen, line
from unpoison.brokers.nats.url import is_group
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.port.reading import as_text
from unpoison.port.serialization import LETTER, foreign_letter, letter_headers, letter_of

RECORD, GROUP = LETTER.encode(), envelope.GROUP
MOST_RECORD = 32 * 1024
"""Bytes that the record may take: headers count towards what the server takes at most."""


def written(letter: DeadLetter, seen: Seen, old: bytes, group: str) -> bytes:
    """The header block of a letter. Sent twice, since an answer got lost, it is stored once."""
    letter = msgspec.structs.replace(letter, original=letter.original | _place(seen))
    extra = [line(MESSAGE_ID, f"{seen.stamp}:{letter.replays}:{group}"), line(GROUP, group)]
    extra += [line(name.encode(), text) for name, text in letter_headers(letter, MOST_RECORD).items()]
    return envelope.copied(seen, old, Counters(attempts=letter.attempts, replays=letter.replays), extra)


def _place(seen: Seen) -> dict[str, str | int]:
    """Where the original stood, from its stamp."""
    stream, number, _ = (*seen.stamp.rsplit(":", 2), "", "")[:3]
    return {"stream": stream, "sequence": int(number)} if number.isascii() and number.isdecimal() else {}


class Found(msgspec.Struct):
    """A letter in its stream, with what is needed to send it again."""

    number: int
    block: bytes
    seen: Seen
    group: str
    letter: DeadLetter


def read(source: str, where: Place, old: bytes, body: bytes, *, number: int, state: str, group: str) -> Found:
    """A letter, or one that was dealt with. `number` is its number as a letter; `group` is for one that names none."""
    found = envelope.fields(old)
    seen = envelope.look_safely(old, where)
    message = Message(seen.id, source, body, seen.key, seen.headers)

    def foreign() -> DeadLetter:
        rule = "something else than unpoison put it here"
        return foreign_letter(message, rule, "nats.Unknown", where.stored_at / 1e9, seen.counters)

    letter = letter_of(found.get(RECORD), message, foreign, id_=f"{source}-{number}", state=state)
    named = as_text(found.get(GROUP, b""))
    named = named if is_group(named) else group
    return Found(number, old, seen, named, msgspec.structs.replace(letter, original=letter.original | {"group": named}))


def record_of(old: bytes) -> bytes | None:
    """The record of a message that is one of our letters; None for any other."""
    found = envelope.fields(old) if RECORD in old else {}
    return found.get(RECORD) if envelope.STAMP in found else None
