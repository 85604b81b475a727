"""What does a letter say that another program put into the DLQ, and where does it go back to?

NATS itself gives nothing up. A program may have put an envelope there: then the message is what is inside. If it came from
another subject than the source of the DLQ, the operator publishes it there; what the history keeps of it belongs to no group, so
that no consumer of the source gets it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from unpoison.brokers.nats import envelope
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.envelope import MESSAGE_ID, Seen, line
from unpoison.brokers.nats.names import check_name
from unpoison.brokers.nats.writing import DENIED, Copy
from unpoison.errors import BrokerUnavailable, ConfigError, PayloadError
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message, Outgoing
from unpoison.port.foreign import celery, json_form
from unpoison.port.foreign.told import UNKNOWN_RULE, Told
from unpoison.port.reading import read_one

NOBODYS = "not/a/group"
"""In the place of a group, whose names have no slash: nobody consumes these."""


class Letter(Protocol):
    """A letter in its stream, as far as it matters here."""

    number: int
    block: bytes
    seen: Seen
    told: Told | None
    letter: DeadLetter


def told(seen: Seen, body: bytes) -> Told | None:
    """What this message says, which is none of our letters; None if it is nothing."""
    return read_one(body, lambda body: _told(seen.headers, body), lambda *_: None)


def _told(headers: Mapping[str, str], body: bytes) -> Told | None:
    return celery.with_task(json_form.read(body), celery.facts(headers, body), UNKNOWN_RULE)


def opened(seen: Seen, block: bytes, body: bytes, found: Told | None) -> tuple[Seen, bytes, bytes]:
    """The original message, its headers and its body, as far as that is told."""
    if found is None or found.content is None:
        return seen, block, body
    message = found.message(Message(seen.id, "", body, seen.key, seen.headers))
    seen = msgspec.structs.replace(seen, key=message.key, headers=message.headers)
    return seen, envelope.published(Outgoing(seen.id, "", message.body, message.key, message.headers)), message.body


def letter(message: Message, found: Told | None, at: float, seen: Seen) -> DeadLetter:
    made = (found or Told(rule=UNKNOWN_RULE)).letter(message, "nats.Unknown", at, seen.counters)
    return msgspec.structs.replace(made, message=message)


def origin(source: str, found: Told | None) -> str | None:
    """The subject that the message came from; None if that is the source of this DLQ."""
    return None if found is None or found.source in ("", source) else found.source


def wrong_origin(subject: str) -> str:
    """Why nothing can be sent to the subject that a message came from; empty if it can be tried."""
    try:
        check_name(subject)
    except ConfigError as wrong:
        return f"it came from {subject!r}, and that is no subject of NATS: {wrong}"
    return ""


def send_elsewhere(client: Client, source: str, letters: Sequence[Letter]) -> PayloadError | None:
    """Publish those that came from other subjects. Says why if one cannot be sent, and then sends none of them.

    NATS drops a second copy that is sent within two minutes; an operator that is killed in between and finished later than that
    sends it a second time.
    """
    found = [(each, subject) for each in letters if (subject := origin(source, each.told)) is not None]
    for each, subject in found:
        if wrong := wrong_origin(subject):
            return _cannot(source, each, wrong)
    for each, subject in found:
        once = line(MESSAGE_ID, f"{each.seen.stamp}:{each.letter.replays}")
        block = envelope.copied(each.seen, each.block, each.letter.replayed(), [once])
        if refused := client.store([Copy(subject, block, each.letter.body)]):
            why = refused[0]
            if why.code < 0 and why.code != DENIED:
                raise BrokerUnavailable(f"Letter {source}-{each.number} may not be sent to {subject!r}: {why.text}.")
            return _cannot(source, each, f"NATS does not store it on the subject {subject!r} that it came from: {why.text}.")
    return None


def _cannot(source: str, each: Letter, why: str) -> PayloadError:
    id_ = f"{source}-{each.number}"
    return PayloadError(f"Letter {id_!r} cannot be sent: {why} Or discard the letter: unpoison dlq discard {id_}")
