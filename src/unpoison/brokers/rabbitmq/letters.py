"""How is a dead letter kept as a message, so that every tool can read it?

The body is the original body, the sender's headers are the sender's headers; what is known about the failure is JSON in the
header `x-unpoison-letter`, with the gist in headers of its own. A message that RabbitMQ itself dead-lettered, or somebody else,
is read as a letter too.
"""

import hashlib
import time
from collections.abc import Collection
from typing import Any

import msgspec

from unpoison.brokers.rabbitmq import envelope, table
from unpoison.brokers.rabbitmq.envelope import MOST_HEADERS, Seen
from unpoison.brokers.rabbitmq.properties import Properties
from unpoison.brokers.rabbitmq.table import Entry
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.deadletters.record import DeadLetter
from unpoison.failure import ErrorClassification
from unpoison.message import Counters, Message
from unpoison.reading import read_one, unreadable_letter
from unpoison.stored import UNREADABLE, letter_within

RECORD, LETTER, STATE = b"x-unpoison-letter", b"x-unpoison-letter-id", b"x-unpoison-state"
_last = [0]


def new_id(source: str) -> str:
    """Grows with time, so that letters can be told in the order in which they were written."""
    _last[0] = max(_last[0] + 1, time.time_ns() // 1000)
    return f"{source}-{_last[0]:014x}{envelope.stamp()}"


def written(letter: DeadLetter, seen: Seen, like: Properties, letter_id: str, state: str = "dead") -> bytes:
    """The properties of a letter."""
    counters = Counters(attempts=letter.attempts, replays=letter.replays)
    return envelope.copied(seen, like, counters, extra=told(letter, letter_id, state))


def told(letter: DeadLetter, letter_id: str, state: str) -> list[Entry]:
    """What is known about a letter, as headers."""
    return [
        table.entry("x-unpoison-letter-id", letter_id),
        table.entry("x-unpoison-state", state),
        table.entry("x-unpoison-source", letter.source),
        table.entry("x-unpoison-error", f"{letter.error_type}: {letter.error}"[:500]),
        table.entry("x-unpoison-reason", letter.reason[:500]),
        table.entry("x-unpoison-letter", letter_within(letter, MOST_HEADERS // 2).decode()),
    ]


class Found(msgspec.Struct):
    """A letter in its queue, with what is needed to send it again."""

    arrived: Arrived
    like: Properties
    seen: Seen
    letter: DeadLetter

    @property
    def identity(self) -> object:
        """Equal for two letters of which a crash left both, since it came between storing one and letting its message go."""
        return (self.seen.stamp, self.letter.replays) if self.seen.stamp else self.letter.id


def read(source: str, arrived: Arrived, states: Collection[str] = ("dead",)) -> Found:
    """A letter in one of these states. What tells of another is left from an earlier life of the message: RabbitMQ itself
    dead-lettered one that had been replayed."""
    like, seen = envelope.opened_safely(arrived)
    headers = {each.name: each.value for each in like.headers.entries}
    if STATE in headers and table.text(headers[STATE]) not in states:
        headers = {name: content for name, content in headers.items() if name not in (RECORD, LETTER, STATE)}
    message = Message(seen.id, source, arrived.body, seen.key, seen.headers)
    letter = read_one(
        headers,
        lambda headers: _known(source, headers) or _foreign(message, headers, seen),
        lambda _, error: unreadable_letter("", "dead", message, error),
    )
    id_ = table.text(headers[LETTER]) if LETTER in headers else f"{source}-{0:014x}{_digest(arrived)}"
    state = table.text(headers[STATE]) if STATE in headers else "dead"
    return Found(arrived, like, seen, msgspec.structs.replace(letter, id=id_, state=state, message=message))


def _known(source: str, headers: dict[bytes, bytes]) -> DeadLetter | None:
    """What we wrote about it ourselves, if we did."""
    if RECORD not in headers:
        return None
    bare: dict[str, Any] = {"id": "", "source": source, "key": None, "headers": {}, "body": b""}
    try:
        return msgspec.convert({**msgspec.json.decode(table.text(headers[RECORD])), "message": bare}, DeadLetter)
    except UNREADABLE:
        return None  # somebody else's header of that name


def _digest(arrived: Arrived) -> str:
    return hashlib.blake2b(arrived.body, digest_size=8).hexdigest()


def _foreign(message: Message, headers: dict[bytes, bytes], seen: Seen) -> DeadLetter:
    """For what RabbitMQ itself gave up, or another program: all that is known is in x-death."""
    deaths = table.value(headers[b"x-death"]) if b"x-death" in headers else []
    death = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    why = str(death.get("reason", "unknown"))
    moment = death.get("time")
    at = float(moment) if isinstance(moment, int) and 0 < moment < 2**33 else 0.0
    rule = (
        f"RabbitMQ dead-lettered it from queue {death.get('queue')!r}: {why}"
        if death
        else "something else than unpoison put it here"
    )
    return DeadLetter(
        message=message,
        attempts=seen.counters.charged,
        classification=str(ErrorClassification.UNKNOWN),
        rule=rule,
        reason=rule,
        error_type="rabbitmq." + why,
        error=rule,
        fingerprint=hashlib.blake2b(rule.encode(), digest_size=6).hexdigest(),
        first_failed_at=seen.counters.first_failed_at or at,
        last_failed_at=at,
        history=seen.counters.history,
        replays=seen.counters.replays,
        original={name: str(content) for name, content in death.items()},
    )
