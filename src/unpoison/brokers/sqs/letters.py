"""How is a dead letter kept as a message, so that every tool can read it?

The body is the original body, the sender's attributes are the sender's attributes; what is known about the failure is JSON in our
own attribute, under `letter`. What SQS itself put there, or somebody else, is read as a letter too.
"""

import hashlib
import time
from typing import Any

import msgspec

from unpoison.brokers.sqs import envelope, writing
from unpoison.brokers.sqs.envelope import Envelope, Raw, Seen
from unpoison.brokers.sqs.writing import LIMIT, Copy, unique
from unpoison.model.classification import ErrorClassification
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.model.wording import counted
from unpoison.port import serialization
from unpoison.port.reading import read_one, unreadable_letter
from unpoison.port.serialization import letter_within

MOST_RECORD = 32 * 1024
CAPS = (8_000, 2_000, 200)
_last = [0]


def new_id(source: str) -> str:
    """Grows with time, so that letters can be told in the order in which they were written."""
    _last[0] = max(_last[0] + 1, time.time_ns() // 1000)
    return f"{source}-{_last[0]:014x}{unique()}"


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
    made = writing.copy(queue, seen.body, told, raw, group=group, once=once, limit=limit)
    for cap in (*CAPS, 0):
        if made.size <= limit:
            return made._replace(letter_id=told.letter_id)
        told = msgspec.structs.replace(told, counters={}, letter=_shortened(told.letter, cap))
        made = writing.copy(queue, seen.body, told, raw, group=group, once=once, limit=limit)
    return (
        made._replace(letter_id=told.letter_id) if made.size <= limit else writing.unchanged(queue, raw, group=group, once=once)
    )


def noted(queue: str, found: "Found") -> Copy:
    """What the history tells of a letter that was sent again. One that left no room for that is there as a note alone."""
    if found.seen.envelope.state == "replayed":
        return writing.copy(queue, found.seen.body, found.seen.envelope, found.raw)
    told = written(found.letter, found.seen, found.letter.id, "replayed")
    return writing.copy(queue, b"", msgspec.structs.replace(told, headers={}, attributes={}))


def _shortened(letter: dict[str, Any], cap: int) -> dict[str, Any]:
    short = {name: content[:cap] if isinstance(content, str) else content for name, content in letter.items()}
    return short | {"traceback": "", "history": [], "crash": None}


class Found(msgspec.Struct):
    """A letter in its queue, with what is needed to send it again."""

    raw: Raw
    seen: Seen
    letter: DeadLetter

    @property
    def handle(self) -> str:
        return str(self.raw["ReceiptHandle"])

    @property
    def identity(self) -> tuple[str, int]:
        """Equal for two letters of which a crash left both, since it came between storing one and letting its message go."""
        return self.seen.stamp, self.letter.replays


def read(source: str, raw: Raw, state: str | None = None, otherwise: str = "dead") -> Found:
    """A letter. What tells of another state than this is left from an earlier life of the message; what tells of none is in the
    other one."""
    seen = envelope.look_safely(raw)
    told = seen.envelope
    is_ours = bool(told.letter) and (state is None or told.state == state)
    message = Message(seen.id, source, seen.body, seen.key, seen.headers)
    letter = read_one(
        raw,
        lambda raw: (_known(source, told) if is_ours else None) or _foreign(message, seen, raw),
        lambda _, error: unreadable_letter("", otherwise, message, error),
    )
    sent = int(raw["Attributes"].get(envelope.SENT_AT, 0))
    id_ = (told.letter_id if is_ours else None) or f"{source}-{sent * 1000:014x}{raw['MessageId'].replace('-', '')[:12]}"
    found = msgspec.structs.replace(letter, id=id_, state=(told.state if is_ours else None) or otherwise, message=message)
    return Found(raw, seen, found)


def is_moved_back(seen: Seen) -> bool:
    """Of a message in the source: whether it is a dead letter, which SQS's own redrive, or another tool, has moved back."""
    return seen.envelope.letter_id is not None


def restarted(seen: Seen) -> Seen:
    """Such a message as it starts: its counters are those of a replay, with the history of the letter."""
    return msgspec.structs.replace(seen, counters=serialization.restarted(seen.envelope.letter, seen.counters.replays))


def _known(source: str, told: Envelope) -> DeadLetter | None:
    """What we wrote about it ourselves."""
    bare: dict[str, Any] = {"id": "", "source": source, "key": None, "headers": {}, "body": b""}
    try:
        return msgspec.convert({**told.letter, "message": bare}, DeadLetter)
    except (msgspec.ValidationError, TypeError):
        return None


def _foreign(message: Message, seen: Seen, raw: Raw) -> DeadLetter:
    rule = (
        f"SQS itself gave it up, something else than unpoison put it here, or it is so large that there was no room for a "
        f"reason; it was received {counted(envelope.received(raw), 'time')}"
    )
    at = int(raw["Attributes"].get(envelope.RECEIVED_AT, raw["Attributes"].get(envelope.SENT_AT, 0))) / 1000
    return DeadLetter(
        message=message,
        attempts=seen.counters.charged,
        classification=str(ErrorClassification.UNKNOWN),
        rule=rule,
        reason=rule,
        error_type="sqs.Redriven",
        error=rule,
        fingerprint=hashlib.blake2b(b"sqs.Redriven", digest_size=6).hexdigest(),
        first_failed_at=seen.counters.first_failed_at or at,
        last_failed_at=at,
        history=seen.counters.history,
        replays=seen.counters.replays,
    )
