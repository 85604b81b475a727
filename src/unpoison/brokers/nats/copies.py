"""Make what is stored for a message: one that is published, kept for another start, or given up. Read dead letters back.

The body of a dead letter is the original body, the sender's headers are the sender's headers; what is known about the failure is
JSON in the header `x-unpoison-letter`, with the gist in headers of its own. What another program put there is read as a letter
too.
"""

import msgspec

from unpoison.brokers.nats import envelope, foreign
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.envelope import GROUP, MESSAGE_ID, Place, Seen, line, place
from unpoison.brokers.nats.topology import Topic
from unpoison.brokers.nats.url import is_group
from unpoison.brokers.nats.writing import Copy
from unpoison.errors import PayloadError
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message, Outgoing
from unpoison.port.broker import Dead, Kept
from unpoison.port.copying.settling import Receipt
from unpoison.port.foreign.told import Told
from unpoison.port.reading import as_text
from unpoison.port.serialization import LETTER, is_ours, letter_headers, letter_of

RECORD = LETTER.encode()
MOST_RECORD = 32 * 1024
"""Bytes that the record may take: headers count towards what the server takes at most."""


def outgoing(client: Client, limit: int, topic: Topic, message: Outgoing) -> Copy:
    """What is stored for a message that is published. `limit` is how many bytes the server takes."""
    target = topic.names.again if message.delay > 0 else message.source
    subject, extra = client.schedule(topic, message.delay, target)
    block = envelope.published(message, extra)
    size = len(block) + len(message.body)
    if size > limit:
        raise PayloadError(
            f"Message {message.id!r} has {size:,} bytes with its headers; this NATS server takes {limit:,} at most (max_payload)."
        )
    return Copy(subject, block, message.body)


def copy_of(client: Client, item: Kept | Dead) -> Copy:
    """What is stored for a message that is kept for another start, or given up."""
    return _kept(client, item) if isinstance(item, Kept) else _letter(client, item)


def _kept(client: Client, item: Kept) -> Copy:
    """Named after where the original is: sent again, since an answer got lost, it is stored once."""
    receipt: Receipt = item.delivery.receipt
    where = place(receipt.handle)
    topic = client.topic(item.delivery.source)
    target = topic.names.suspects if item.counters.alone else topic.names.again
    subject, extra = client.schedule(topic, item.after, target)
    seen = envelope.look_safely(receipt.envelope, where)
    block = envelope.copied(seen, receipt.envelope, item.counters, [*extra, line(MESSAGE_ID, where)])
    return Copy(subject, block, item.delivery.body)


def _letter(client: Client, item: Dead) -> Copy:
    receipt: Receipt = item.delivery.receipt
    names = client.topic(item.delivery.source).names
    seen = envelope.look_safely(receipt.envelope, place(receipt.handle))
    return Copy(names.dead, written(item.letter, seen, receipt.envelope, names.group), item.delivery.body)


def written(letter: DeadLetter, seen: Seen, old: bytes, group: str) -> bytes:
    """The header block of a letter. Sent twice, since an answer got lost, it is stored once."""
    letter = msgspec.structs.replace(letter, original=letter.original | _place(seen))
    extra = [line(MESSAGE_ID, f"{seen.stamp}:{letter.replays}:{group}"), line(GROUP, group)]
    extra += about(letter)
    return envelope.copied(seen, old, Counters(attempts=letter.attempts, replays=letter.replays), extra)


def about(letter: DeadLetter) -> list[bytes]:
    """Headers that tell what is known about the failure."""
    return [line(name.encode(), text) for name, text in letter_headers(letter, MOST_RECORD).items()]


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
    told: Told | None = None
    """What another system says about it."""


def read(source: str, where: Place, old: bytes, body: bytes, *, number: int, state: str, group: str) -> Found:
    """A letter, or one that was dealt with. `number` is its number as a letter; `group` is for one that names none."""
    found = envelope.fields(old)
    seen = envelope.look_safely(old, where)
    told = None if is_ours(found.get(RECORD)) else foreign.told(seen, body)
    seen, old, body = foreign.opened(seen, old, body, told)
    message = Message(seen.id, source, body, seen.key, seen.headers)

    def otherwise() -> DeadLetter:
        return foreign.letter(message, told, where.stored_at / 1e9, seen)

    letter = letter_of(found.get(RECORD), message, otherwise, id_=f"{source}-{number}", state=state)
    named = as_text(found.get(GROUP, b""))
    named = named if is_group(named) else group
    letter = msgspec.structs.replace(
        letter, original={"group": named} | letter.original if told else letter.original | {"group": named}
    )
    return Found(number, old, seen, named, letter, told)


def is_letter(block: bytes) -> bool:
    """Whether a message with these headers is a letter of unpoison."""
    return is_ours(envelope.fields(block).get(RECORD))


def record_of(old: bytes) -> bytes | None:
    """The record of a message that is one of our letters; None for any other."""
    found = envelope.fields(old) if RECORD in old else {}
    return found.get(RECORD) if envelope.STAMP in found else None
