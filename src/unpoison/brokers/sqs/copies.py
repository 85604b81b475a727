"""Make what is stored for a message: one that is published, kept for another start, or given up. Read dead letters back.

Each copy tells more than its original. A message of another program may be as large as SQS takes any, with no room for that: it
is retried in place, where SQS counts its receives, and given up as it is.

SQS lets a message wait for 15 minutes at most. One that is to wait longer carries what is left (`wait`), and the consumer that
receives it then sends it on. How long it has waited is told by the server's own clock: when it was sent, and when it was first
received.

The body of a dead letter is the original body, the sender's attributes are the sender's attributes; what is known about the
failure is JSON in our own attribute, under `letter`. What SQS itself put there, or another program, is read as a letter too.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.brokers.sqs import envelope, foreign
from unpoison.brokers.sqs.connection import LIMIT
from unpoison.brokers.sqs.envelope import GROUP, RECEIVED_AT, SENT_AT, TRACE, Envelope, Raw, Seen
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.writing import Copy
from unpoison.errors import PayloadError
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message, Outgoing
from unpoison.port import serialization
from unpoison.port.broker import Dead, Kept
from unpoison.port.copying.ids import new_letter_id, unique
from unpoison.port.copying.settling import Receipt
from unpoison.port.foreign.told import Told
from unpoison.port.serialization import letter_of, letter_within, restarted

RESERVED = 4_096
"""Bytes that a new message leaves free: its retries and its dead letter have more to tell."""

LONGEST_DELAY = 900
LONGEST_GROUP = 128

NO_KEY = "unpoison"
"""The message group of everything without a key: a FIFO queue keeps all of that in order."""

LETTER_GROUP = "letter-"
"""Begins the message group of a letter in a FIFO queue."""

MOST_GROWTH = 8
"""No copy has so many times the bytes of its original; attributes that have to travel as JSON have up to three times as many,
and what is small has room anyway."""

MOST_COUNTED = Counters(
    999_999, 2, 999_999, True, True, 999_999, 999_999, 1_234_567_890.123_456_7, put_off=999_999, waited=1_234_567_890.123_456_7
)
MOST_DELAY = 123_456_789.123_456_78

MOST_RECORD = 32 * 1024
CAPS = (8_000, 2_000, 200)


def copy(
    queue: str,
    body: bytes,
    told: Envelope,
    raw: Raw | None = None,
    *,
    delay: float = 0.0,
    group: str | None = None,
    once: str | None = None,
    limit: int = LIMIT,
) -> Copy:
    """A message for this queue. `group` and `once` are for FIFO: whose order it keeps, and by what a second one is recognised."""
    attributes = envelope.attributes(told, raw)
    text, encoding = envelope.encoded(body, limit - RESERVED - size_of(attributes))
    wait = delay if delay > LONGEST_DELAY else 0.0
    if encoding is not None or wait:
        attributes = envelope.attributes(msgspec.structs.replace(told, encoding=encoding, wait=wait), raw)
    return _made(queue, text, attributes, raw, delay, group, once)


def unchanged(queue: str, raw: Raw, *, delay: float = 0.0, group: str | None = None, once: str | None = None) -> Copy:
    """A message as it is, for one that has no room for anything of ours: what its queue took once, others take too."""
    return _made(queue, raw["Body"], envelope.sent(raw), raw, delay, group, once)


def _made(
    queue: str, text: str, attributes: dict[str, Any], raw: Raw | None, delay: float, group: str | None, once: str | None
) -> Copy:
    entry: dict[str, Any] = {"MessageBody": text, "MessageAttributes": attributes}
    if delay > 0:
        entry["DelaySeconds"] = min(math.ceil(delay), LONGEST_DELAY)
    if group is not None:
        entry[GROUP] = group
    if once is not None:
        entry["MessageDeduplicationId"] = once
    trace = None if raw is None else raw["Attributes"].get(TRACE)
    if trace is not None:
        entry["MessageSystemAttributes"] = {TRACE: {"DataType": "String", "StringValue": trace}}
    return Copy(queue, entry, _bytes(text) + size_of(attributes))


def size_as_it_is(raw: Raw) -> int:
    """Bytes of a message that was received."""
    return _bytes(raw["Body"]) + size_of(raw.get("MessageAttributes") or {})


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def size_of(attributes: Mapping[str, Any]) -> int:
    """What attributes count towards the size of a message."""
    return sum(
        len(name.encode())
        + len(value["DataType"])
        + len(value.get("StringValue", "").encode())
        + len(value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )


def check_size(id_: str, made: Copy, limit: int = LIMIT) -> None:
    """Refuse a new message that is too large, before anything is sent."""
    most = limit - RESERVED
    if made.size > most:
        raise PayloadError(
            f"Message {id_!r} has {made.size:,} bytes as it would be sent, with its attributes; this queue takes {limit:,} at "
            f"most, of which unpoison keeps {RESERVED:,} for what a retry or a dead letter has to tell. Store large data "
            f"elsewhere and send where it is."
        )


def remaining(raw: Raw, told: Envelope) -> float:
    """Seconds that a message still has to wait, by the server's clock."""
    if not told.wait:
        return 0.0
    times = raw["Attributes"]
    return told.wait - max(0, int(times.get(RECEIVED_AT, 0)) - int(times.get(SENT_AT, 0))) / 1000


def group_of(key: str | None, otherwise: str | None) -> str | None:
    """A key as the name of a message group, if SQS takes it as one."""
    fits = key and len(key) <= LONGEST_GROUP and key.isascii() and key.isprintable() and " " not in key
    return key if fits else otherwise


def outgoing(topic: Topic, message: Outgoing) -> Copy:
    """What is stored for a message that is published."""
    where = _where(topic, None, key=message.key, delay=message.delay)
    made = copy(body=message.body, told=envelope.published(message), limit=topic.limit, **where)
    check_size(message.id, made, topic.limit)
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
    made = copy(body=seen.body, told=told, raw=raw, limit=topic.limit, **where)
    for less in ("history", "waits_for"):  # better without these than not at all
        if made.size > topic.limit and told.counters.pop(less, None) is not None:
            made = copy(body=seen.body, told=told, raw=raw, limit=topic.limit, **where)
    return made if made.size <= topic.limit else unchanged(raw=raw, **where)


def has_room(topic: Topic, raw: Raw) -> bool:
    """Whether a retry of this message can carry all that is counted. What it waits for and its history may have to stay away."""
    if MOST_GROWTH * size_as_it_is(raw) < topic.limit:
        return True
    seen = envelope.look_safely(raw)
    told = envelope.copied(seen, MOST_COUNTED)
    return copy(topic.work, seen.body, told, raw, delay=MOST_DELAY, limit=topic.limit).size <= topic.limit


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
    told = written(item.letter, seen, new_letter_id(item.delivery.source), "dead", group)
    once = None
    if topic.is_fifo:
        once, group = f"{seen.stamp}:{item.letter.replays}", _letter_group(seen)
    return fitted(topic.dlq, seen, told, receipt.envelope, group=group, once=once, limit=topic.letters_limit)


def _letter_group(seen: Seen) -> str:
    """Of its own for each: SQS hands out ten messages of a group, and no more of it before these are deleted. If letters kept
    their group, nobody could see the eleventh."""
    return f"{LETTER_GROUP}{hashlib.blake2b(seen.stamp.encode(), digest_size=12).hexdigest()}"


def written(letter: DeadLetter, seen: Seen, letter_id: str, state: str, group: str | None = None) -> Envelope:
    """The envelope of a letter. `group` is the message group that the message had in its source."""
    original = {**letter.original, "message_id": seen.stamp, **({"message_group_id": group} if group else {})}
    letter = msgspec.structs.replace(letter, original=original)
    told = envelope.copied(seen, Counters(attempts=letter.attempts, replays=letter.replays))
    told.letter, told.letter_id, told.state = msgspec.json.decode(letter_within(letter, MOST_RECORD)), letter_id, state
    return told


def fitted(
    queue: str, seen: Seen, told: Envelope, raw: Raw, *, group: str | None = None, once: str | None = None, limit: int = LIMIT
) -> Copy:
    """A letter that SQS takes: where a large body leaves no room, less is told about it, and at last nothing."""
    made = copy(queue, seen.body, told, raw, group=group, once=once, limit=limit)
    for cap in (*CAPS, 0):
        if made.size <= limit:
            return made._replace(letter_id=told.letter_id)
        told = msgspec.structs.replace(told, counters={}, letter=_shortened(told.letter, cap))
        made = copy(queue, seen.body, told, raw, group=group, once=once, limit=limit)
    return made._replace(letter_id=told.letter_id) if made.size <= limit else unchanged(queue, raw, group=group, once=once)


def noted(queue: str, found: "Found") -> Copy:
    """What the history tells of a letter that was sent again. One that left no room for that is there as a note alone."""
    if found.seen.envelope.state == "replayed":
        return copy(queue, found.seen.body, found.seen.envelope, found.raw)
    told = written(found.letter, found.seen, found.letter.id, "replayed")
    return copy(queue, b"", msgspec.structs.replace(told, headers={}, attributes={}))


def _shortened(letter: dict[str, Any], cap: int) -> dict[str, Any]:
    short = {name: content[:cap] if isinstance(content, str) else content for name, content in letter.items()}
    return short | {"traceback": "", "history": [], "crash": None}


class Found(msgspec.Struct):
    """A letter in its queue, with what is needed to send it again."""

    raw: Raw
    seen: Seen
    letter: DeadLetter
    told: Told | None = None
    """What another system says about it."""

    @property
    def handle(self) -> str:
        return str(self.raw["ReceiptHandle"])

    @property
    def identity(self) -> tuple[str, int]:
        """Equal for two letters of which a crash left both, since it came between storing one and letting its message go."""
        return self.seen.stamp, self.letter.replays


def read(source: str, raw: Raw, state: str | None = None, otherwise: str = "dead") -> Found:
    """A letter. A state other than this is left from an earlier life of the message; one that tells none is in the `otherwise`
    state."""
    seen = envelope.look_safely(raw)
    told = seen.envelope
    is_ours = bool(told.letter) and (state is None or told.state == state)
    found: Told | None = None
    if not (is_ours and serialization.is_ours(told.letter)):
        found = foreign.told(raw, seen)
        seen, raw = foreign.opened(seen, found), foreign.without_theirs(raw, found)
    message = Message(seen.id, source, seen.body, seen.key, seen.headers)
    sent = int(raw["Attributes"].get(envelope.SENT_AT, 0))
    id_ = (told.letter_id if is_ours else None) or f"{source}-{sent * 1000:014x}{raw['MessageId'].replace('-', '')[:12]}"
    letter = letter_of(
        told.letter if is_ours else None,
        message,
        lambda: foreign.letter(message, seen, raw, found or foreign.told(raw, seen)),
        id_=id_,
        state=(told.state if is_ours else None) or otherwise,
    )
    return Found(raw, seen, letter, found)


def sent_again(topic: Topic, found: Found) -> Copy:
    """The message of a letter, for its source."""
    return again(topic, found.seen, found.raw, found.letter.replayed(), once=found.raw["MessageId"])


def elsewhere(url: str, found: Found) -> Copy:
    """The message of a letter, for a queue that is not the source of its DLQ."""
    is_fifo = url.endswith(".fifo")
    group = fifo_group(found.seen.key, found.raw) if is_fifo else group_of(found.seen.key, None)
    once = found.raw["MessageId"] if is_fifo else None
    told = envelope.copied(found.seen, found.letter.replayed())
    made = copy(url, found.seen.body, told, found.raw, group=group, once=once)
    is_inside = found.told is not None and found.told.content is not None
    return made if made.size <= LIMIT or is_inside else unchanged(url, found.raw, group=group, once=once)


def is_moved_back(seen: Seen) -> bool:
    """Of a message in the source: whether it is a dead letter that SQS's own redrive, or another tool, has moved back."""
    return seen.envelope.letter_id is not None


def as_replay(seen: Seen) -> Seen:
    """Such a message as it starts: its counters are those of a replay, with the history of the letter."""
    return msgspec.structs.replace(seen, counters=restarted(seen.envelope.letter, seen.counters.replays))
