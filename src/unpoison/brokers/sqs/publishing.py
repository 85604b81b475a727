"""Publish messages, and say what became of each; make the copies that are stored for retries and dead letters.

Messages are sent ten at a time, one request after the other. SQS answers for each of the ten; a request that got no answer may
have been carried out. After one that was not stored nothing more is sent: it would overtake it.

Each copy tells more than its original. A message of another program may be as large as SQS takes any, with no room for that: it
is retried in place, where SQS counts its receives, and given up as it is.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from unpoison.brokers.sqs import envelope, letters, writing
from unpoison.brokers.sqs.client import Client
from unpoison.brokers.sqs.connection import Denied, NoQueue
from unpoison.brokers.sqs.envelope import Raw, Seen
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.writing import NOT_SENT, Copy, No, group_of
from unpoison.errors import BrokerUnavailable, PayloadError, Refusal
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import STORED, Dead, Kept, Published, Refused, not_sent, without_source
from unpoison.port.copying.ids import new_letter_id, unique
from unpoison.port.copying.settling import Receipt

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
    """What is stored for a message that is published."""
    where = _where(topic, None, key=message.key, delay=message.delay)
    made = writing.copy(body=message.body, envelope=envelope.published(message), limit=topic.limit, **where)
    writing.check_size(message.id, made, topic.limit)
    return made


def copy_of(topic: Topic, item: Kept | Dead) -> Copy:
    """What is stored for a message that is kept for another start, or given up."""
    if isinstance(item, Dead):
        return letter(topic, item)
    receipt: Receipt = item.delivery.receipt
    return again(topic, envelope.look_safely(receipt.envelope), receipt.envelope, item.counters, item.after)


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
    """The group whose order a message keeps: its key's, or the one that another program has sent it in."""
    if key is None:
        group = str((raw or {"Attributes": {}})["Attributes"].get(envelope.GROUP, NO_KEY))
        return NO_KEY if group.startswith(LETTER_GROUP) else group
    return group_of(key, None) or f"key-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"


def letter(topic: Topic, item: Dead) -> Copy:
    receipt: Receipt = item.delivery.receipt
    seen = envelope.look_safely(receipt.envelope)
    group = fifo_group(seen.key, receipt.envelope) if topic.is_fifo else group_of(seen.key, None)
    told = letters.written(item.letter, seen, new_letter_id(item.delivery.source), "dead", group)
    once = None
    if topic.is_fifo:
        once, group = f"{seen.stamp}:{item.letter.replays}", _letter_group(seen)
    return letters.fitted(topic.dlq, seen, told, receipt.envelope, group=group, once=once, limit=topic.letters_limit)


def _letter_group(seen: Seen) -> str:
    """Of its own for each: SQS hands out ten messages of a group, and no more of it before these are deleted. If letters kept
    their group, nobody could see the eleventh."""
    return f"{LETTER_GROUP}{hashlib.blake2b(seen.stamp.encode(), digest_size=12).hexdigest()}"


_REFUSALS = {
    NOT_SENT: Refusal.NOT_SENT,
    "InvalidMessageContents": Refusal.UNFIT,
    "AccessDenied": Refusal.NOT_PERMITTED,
    "AccessDeniedException": Refusal.NOT_PERMITTED,
    "MessageTooLong": Refusal.TOO_LARGE,
    "BatchRequestTooLong": Refusal.TOO_LARGE,
    "InvalidParameterValue": Refusal.UNFIT,
}


def publish(client: Client, messages: Sequence[Outgoing]) -> Published:
    refused = without_source(messages, client.topic)
    wanted: dict[int, Copy] = {}
    for number, message in enumerate(messages):
        if number not in refused:
            try:
                wanted[number] = outgoing(client.topic(message.source), message)
            except PayloadError as error:
                refused[number] = not_sent(error, Refusal.TOO_LARGE)
    failed = _send(client, messages, wanted)
    created = tuple(client.created)
    client.created.clear()
    if not failed and not refused:
        return Published(created=created) if created else STORED
    refused |= {number: _refused(no) for number, no in failed.items() if no.is_certain}
    unknown = {number: _told(no) for number, no in failed.items() if not no.is_certain}
    return Published(refused, unknown, created)


def _send(client: Client, messages: Sequence[Outgoing], wanted: Mapping[int, Copy]) -> dict[int, No]:
    """Why some of these are not stored. If a queue was deleted meanwhile it is created again, and what is left is sent."""
    failed = _in_order(client, wanted)
    if not any(isinstance(no.error, NoQueue) for no in failed.values()):
        return failed
    left = {number: wanted[number] for number, no in failed.items() if no.is_certain}
    try:
        for source in {messages[number].source for number in left}:
            client.remake(source)
    except BrokerUnavailable as error:
        return failed | {number: No("", str(error), error) for number in left}
    return {number: no for number, no in failed.items() if number not in left} | _in_order(client, left)


def _in_order(client: Client, wanted: Mapping[int, Copy]) -> dict[int, No]:
    numbers = list(wanted)
    return {numbers[index]: no for index, no in writing.store_in_order(client.connection, list(wanted.values())).items()}


def _refused(no: No) -> Refused:
    if isinstance(no.error, NoQueue):
        return Refused(Refusal.NO_SUCH_SOURCE, _told(no))
    if isinstance(no.error, Denied):
        return Refused(Refusal.NOT_PERMITTED, _told(no))
    code = getattr(no.error, "code", no.code)
    return Refused(_REFUSALS.get(code, Refusal.OTHER), _told(no))


def _told(no: No) -> str:
    text = no.text.rstrip(".")
    return f"{text}." if no.error is not None or no.code == NOT_SENT else f"SQS did not store it: {text} ({no.code})."
