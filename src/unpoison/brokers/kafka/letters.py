"""How is a dead letter kept as a record, so that every tool can read it?

Key, body and the sender's headers are the original ones; what is known about the failure is JSON in the header
`x-unpoison-letter`, with the gist in headers of its own. Letters that Spring Kafka or Kafka Connect wrote are read too.
"""

import hashlib
from typing import Any

import msgspec

from unpoison.brokers.kafka import envelope, foreign
from unpoison.brokers.kafka.envelope import BODY_AT, LETTER, LETTER_ID, Copy, Seen, is_number
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.record import Record
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.port.reading import read_one, unreadable_letter
from unpoison.port.serialization import UNREADABLE, letter_within

GROUP = "x-unpoison-group"
WHOLE, TRIMMED, REFERRING = 0, 1, 2
"""How much of a letter is written: all; less about the failure; and, at last, only where its body is."""
MOST_RECORD = (64 * 1024, 2_000, 2_000)


def written(names: Names, letter: DeadLetter, record: Record, how: int = WHOLE) -> Copy:
    seen = envelope.look_safely(record, names.topic)
    original = {"topic": record.topic(), "partition": record.partition(), "offset": record.offset()}
    letter = msgspec.structs.replace(
        letter, original={**envelope.place(seen.stamp), "group": names.group_name, **letter.original}
    )
    extra: dict[str, Any] = {
        LETTER_ID: identity(names.group_name, seen, letter.replays),
        GROUP: names.group_name,
        "x-unpoison-source": letter.source,
        "x-unpoison-error": f"{letter.error_type}: {letter.error}"[:500],
        "x-unpoison-reason": letter.reason[:500],
        LETTER: letter_within(letter, MOST_RECORD[how]).decode(),
    }
    if how == REFERRING:
        extra[BODY_AT] = "{topic}/{partition}/{offset}".format(**original)
    headers = envelope.copied(record, seen, Counters(attempts=letter.attempts, replays=letter.replays), extra)
    if how == REFERRING:
        headers = [(name, value) for name, value in headers if name.startswith(envelope.OURS)]
    return Copy(names.dlq, None if how == REFERRING else record.value(), record.key(), headers)


def identity(group: str, seen: Seen, replays: int) -> str:
    """Equal for letters of one message of which a crash left two, since it came between storing one and letting go."""
    text = f"{group}\0{seen.stamp}\0{replays}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def read(source: str, id_: str, state: str, record: Record, original: Record | None) -> DeadLetter:
    """A letter. `original` has the body and the sender's headers: the letter itself, or what it refers to while that is there."""
    seen = envelope.look_safely(record)
    sent = seen.headers if original is None else envelope.look_safely(original).headers
    body = b"" if original is None else original.value() or b""
    message = Message(seen.id, source, body, seen.key, sent, original is not None and original.value() is None)
    letter = read_one(
        record,
        lambda record: _known(source, record) or foreign.read(message, record),
        lambda _, error: unreadable_letter(id_, state, message, error),
    )
    return msgspec.structs.replace(letter, id=id_, state=state, message=message)


def body_at(record: Record) -> tuple[tuple[str, int], int] | None:
    """Topic and partition, and offset, of the message that a letter refers to; None for one that has its body itself."""
    topic, _, rest = (envelope.field(record, BODY_AT) or "").partition("/")
    partition, _, offset = rest.partition("/")
    if record.value() is not None or not (is_number(partition) and is_number(offset)):
        return None
    return (topic, int(partition)), int(offset)


def _known(source: str, record: Record) -> DeadLetter | None:
    """What we wrote about it ourselves, if we did."""
    told = envelope.field(record, LETTER)
    if told is None:
        return None
    bare: dict[str, Any] = {"id": "", "source": source, "key": None, "headers": {}, "body": b""}
    try:
        return msgspec.convert({**msgspec.json.decode(told), "message": bare}, DeadLetter)
    except UNREADABLE:
        return None  # somebody else's header of that name
