"""What is stored for a message that is published, kept for another start, moved on, or given up?

Each copy tells more than its original. One that somebody else has sent may be as large as SQS takes any: it has no room for that.
It is retried in place, where SQS counts its receives, and given up as it is.
"""

import hashlib
from typing import Any

from unpoison.brokers.sqs import envelope, letters, writing
from unpoison.brokers.sqs.envelope import Raw, Receipt, Seen
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.writing import Copy, group_of, unique
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Dead, Kept

NO_KEY = "unpoison"
"""The message group of everything without a key: a FIFO queue keeps all of that in order."""

LETTER_GROUP = "letter-"
"""Begins the message group of a letter in a FIFO queue."""

MOST_GROWTH = 8
"""No copy has so many times the bytes of its original; attributes that have to travel as JSON have up to three times as many,
and what is small has room anyway."""

MOST_COUNTED = Counters(999_999, 2, 999_999, True, True, 999_999, 999_999, 1_234_567_890.123_456_7)
MOST_DELAY = 123_456_789.123_456_78


def outgoing(topic: Topic, message: Outgoing) -> Copy:
    where = _where(topic, None, key=message.key, delay=message.delay)
    made = writing.copy(body=message.body, envelope=envelope.published(message), limit=topic.limit, **where)
    writing.check_size(message.id, made, topic.limit)
    return made


def kept(topic: Topic, item: Kept) -> Copy:
    receipt: Receipt = item.delivery.receipt
    seen = envelope.look_safely(receipt.raw)
    return again(topic, seen, receipt.raw, item.counters, item.after)


def again(topic: Topic, seen: Seen, raw: Raw, counters: Counters, after: float = 0.0, once: str | None = None) -> Copy:
    """A copy for another start: among the others, or alone if its counters say so."""
    told = envelope.copied(seen, counters)
    where = _where(topic, raw, key=seen.key, delay=after, once=once, alone=counters.alone)
    made = writing.copy(body=seen.body, envelope=told, raw=raw, limit=topic.limit, **where)
    if made.size > topic.limit:  # better without its history than not at all
        told.counters.pop("history", None)
        made = writing.copy(body=seen.body, envelope=told, raw=raw, limit=topic.limit, **where)
    return made if made.size <= topic.limit else writing.unchanged(raw=raw, **where)


def has_room(topic: Topic, raw: Raw) -> bool:
    """Whether a retry of this message can carry whatever there will be to tell, but for its history."""
    if MOST_GROWTH * writing.size_as_it_is(raw) < topic.limit:
        return True
    seen = envelope.look_safely(raw)
    told = envelope.copied(seen, MOST_COUNTED)
    return writing.copy(topic.work, seen.body, told, raw, delay=MOST_DELAY, limit=topic.limit).size <= topic.limit


def _where(
    topic: Topic, raw: Raw | None, *, key: str | None, delay: float, once: str | None = None, alone: bool = False
) -> dict[str, Any]:
    """The queue for a copy, when it is to be seen there, and for FIFO its group."""
    if topic.later is None:
        return {"queue": topic.suspects if alone else topic.work, "delay": delay, "group": group_of(key, None)}
    if delay > 0:
        return {"queue": topic.later, "delay": delay}
    if alone:  # each in a group of its own: nobody there waits for another one
        name = once or unique()
        return {"queue": topic.suspects, "group": name, "once": name}
    return {"queue": topic.work, "group": fifo_group(key, raw), "once": once or unique()}


def fifo_group(key: str | None, raw: Raw | None) -> str:
    """The group whose order a message keeps: its key's, or the one that somebody else has sent it in."""
    if key is None:
        group = str((raw or {"Attributes": {}})["Attributes"].get(envelope.GROUP, NO_KEY))
        return NO_KEY if group.startswith(LETTER_GROUP) else group
    return group_of(key, None) or f"key-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"


def letter(topic: Topic, item: Dead) -> Copy:
    receipt: Receipt = item.delivery.receipt
    seen = envelope.look_safely(receipt.raw)
    group = fifo_group(seen.key, receipt.raw) if topic.is_fifo else group_of(seen.key, None)
    told = letters.written(item.letter, seen, letters.new_id(item.delivery.source), "dead", group)
    once = None
    if topic.is_fifo:
        once, group = f"{seen.stamp}:{item.letter.replays}", _letter_group(seen)
    return letters.fitted(topic.dlq, seen, told, receipt.raw, group=group, once=once, limit=topic.letters_limit)


def _letter_group(seen: Seen) -> str:
    """Of its own for each: SQS hands out ten messages of a group, and no more of it before these are deleted. If letters kept
    their group, nobody could see the eleventh."""
    return f"{LETTER_GROUP}{hashlib.blake2b(seen.stamp.encode(), digest_size=12).hexdigest()}"
