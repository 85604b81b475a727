"""Write a dead letter as a message that every tool can read, and read it back.

The body is the original body, the sender's attributes are the sender's attributes; what is known about the failure is JSON in our
own attribute, under `letter`. What SQS itself put there, or another program, is read as a letter too.
"""

from typing import Any

import msgspec

from unpoison.brokers.sqs import envelope, writing
from unpoison.brokers.sqs.envelope import Envelope, Raw, Seen
from unpoison.brokers.sqs.writing import LIMIT, Copy
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message
from unpoison.model.wording import counted
from unpoison.port.serialization import foreign_letter, letter_of, letter_within, restarted

MOST_RECORD = 32 * 1024
CAPS = (8_000, 2_000, 200)


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
    """A letter. A state other than this is left from an earlier life of the message; one that tells none is in the `otherwise`
    state."""
    seen = envelope.look_safely(raw)
    told = seen.envelope
    is_ours = bool(told.letter) and (state is None or told.state == state)
    message = Message(seen.id, source, seen.body, seen.key, seen.headers)
    sent = int(raw["Attributes"].get(envelope.SENT_AT, 0))
    id_ = (told.letter_id if is_ours else None) or f"{source}-{sent * 1000:014x}{raw['MessageId'].replace('-', '')[:12]}"
    letter = letter_of(
        told.letter if is_ours else None,
        message,
        lambda: _foreign(message, seen, raw),
        id_=id_,
        state=(told.state if is_ours else None) or otherwise,
    )
    return Found(raw, seen, letter)


def is_moved_back(seen: Seen) -> bool:
    """Of a message in the source: whether it is a dead letter that SQS's own redrive, or another tool, has moved back."""
    return seen.envelope.letter_id is not None


def as_replay(seen: Seen) -> Seen:
    """Such a message as it starts: its counters are those of a replay, with the history of the letter."""
    return msgspec.structs.replace(seen, counters=restarted(seen.envelope.letter, seen.counters.replays))


def _foreign(message: Message, seen: Seen, raw: Raw) -> DeadLetter:
    rule = (
        f"SQS itself gave it up, something else than unpoison put it here, or it is so large that there was no room for a "
        f"reason; it was received {counted(envelope.received(raw), 'time')}"
    )
    at = int(raw["Attributes"].get(envelope.RECEIVED_AT, raw["Attributes"].get(envelope.SENT_AT, 0))) / 1000
    return foreign_letter(message, rule, "sqs.Redriven", at, seen.counters, alike="sqs.Redriven")
