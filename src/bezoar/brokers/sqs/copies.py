"""What is stored for a message that is published, kept for another start, moved on, or given up?"""

import hashlib

from bezoar.brokers.sqs import envelope, letters, writing
from bezoar.brokers.sqs.envelope import Raw, Receipt, Seen
from bezoar.brokers.sqs.topology import Topic
from bezoar.brokers.sqs.writing import Copy, group_of, unique
from bezoar.message import Counters, Outgoing
from bezoar.ports import Dead, Kept

NO_KEY = "bezoar"
"""The message group of everything without a key: a FIFO queue keeps all of that in order."""


def outgoing(topic: Topic, message: Outgoing) -> Copy:
    made = _to(topic, message.body, envelope.published(message), key=message.key, delay=message.delay)
    writing.check_size(message.id, made, topic.limit)
    return made


def kept(topic: Topic, item: Kept) -> Copy:
    receipt: Receipt = item.delivery.receipt
    seen = envelope.look(receipt.raw)
    return again(topic, seen, receipt.raw, item.counters, item.after)


def again(topic: Topic, seen: Seen, raw: Raw, counters: Counters, after: float = 0.0, once: str | None = None) -> Copy:
    """A copy for another start: among the others, or alone if its counters say so."""
    told = envelope.copied(seen, counters)
    made = _to(topic, seen.body, told, raw, key=seen.key, delay=after, once=once, alone=counters.alone)
    if made.size > writing.LIMIT:  # better without its history than not at all
        told.counters.pop("history", None)
        made = _to(topic, seen.body, told, raw, key=seen.key, delay=after, once=once, alone=counters.alone)
    return made


def _to(
    topic: Topic,
    body: bytes,
    told: envelope.Envelope,
    raw: Raw | None = None,
    *,
    key: str | None,
    delay: float,
    once: str | None = None,
    alone: bool = False,
) -> Copy:
    if topic.later is None:
        queue = topic.suspects if alone else topic.work
        return writing.copy(queue, body, told, raw, delay=delay, group=group_of(key, None))
    if delay > 0:
        return writing.copy(topic.later, body, told, raw, delay=delay)
    if alone:  # each in a group of its own: nobody there waits for another one
        name = once or unique()
        return writing.copy(topic.suspects, body, told, raw, group=name, once=name)
    return writing.copy(topic.work, body, told, raw, group=fifo_group(key, raw), once=once or unique())


def fifo_group(key: str | None, raw: Raw | None) -> str:
    """The group whose order a message keeps: its key's, or the one that somebody else has sent it in."""
    if key is None:
        return str((raw or {"Attributes": {}})["Attributes"].get(envelope.GROUP, NO_KEY))
    return group_of(key, None) or f"key-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"


def letter(topic: Topic, item: Dead) -> Copy:
    receipt: Receipt = item.delivery.receipt
    seen = envelope.look(receipt.raw)
    told = letters.written(item.letter, seen, letters.new_id(item.delivery.source), "dead")
    once = f"{seen.stamp}:{item.letter.replays}" if topic.is_fifo else None
    return letters.fitted(topic.dlq, seen, told, receipt.raw, group=_letter_group(seen) if topic.is_fifo else None, once=once)


def _letter_group(seen: Seen) -> str:
    """Of its own for each: of a group that is being looked at SQS shows nothing else."""
    return f"letter-{hashlib.blake2b(seen.stamp.encode(), digest_size=12).hexdigest()}"
