"""What travels with a message: one line of JSON before its body. Counters and the record of a dead letter have the form that all
brokers use (`unpoison.port.serialization`)."""

import msgspec

from tests.contract.folder_adapter.queue import File
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import NO_HEADERS, UNTRIED, Counters, Delivery, Message, Outgoing
from unpoison.port.copying.settling import Receipt
from unpoison.port.reading import Unreadable, unreadable
from unpoison.port.serialization import counters_or_untried, counters_text, foreign_letter, letter_of, letter_within

MOST_RECORD = 64 * 1024


class Envelope(msgspec.Struct, omit_defaults=True):
    id: str
    key: str | None = None
    headers: dict[str, str] = {}
    stamp: str | None = None
    counters: str | None = None
    letter: str | None = None


def split(data: bytes) -> tuple[Envelope, bytes]:
    """The envelope and the body of a message. May raise: anyone may write files."""
    line, _, body = data.partition(b"\n")
    return msgspec.json.decode(line, type=Envelope), body


def published(message: Outgoing) -> bytes:
    return _joined(Envelope(message.id, message.key, dict(message.headers)), message.body)


def copied(delivery: Delivery, counters: Counters, letter: DeadLetter | None = None) -> bytes:
    """A copy: what the sender wrote, with these counters. It needs nothing but the delivery, so it can be made of a message that
    could not be read, too."""
    stamp, record = delivery.receipt.envelope, None if letter is None else letter_within(letter, MOST_RECORD).decode()
    envelope = Envelope(delivery.id, delivery.key, dict(delivery.headers), stamp, counters_text(counters), record)
    return _joined(envelope, delivery.body)


def sent_back(whole: WholeLetter) -> bytes:
    """The message of a letter, with what the sender wrote and the counters of a replay. The file is all of the native form."""
    letter = whole.letter
    try:
        envelope, _ = split(whole.native or b"")
    except (msgspec.MsgspecError, ValueError):
        envelope = Envelope(letter.message.id)
    counters, stamp = counters_text(letter.replayed()), envelope.stamp or letter.id
    return _joined(msgspec.structs.replace(envelope, stamp=stamp, counters=counters, letter=None), letter.body)


def _joined(envelope: Envelope, body: bytes) -> bytes:
    return msgspec.json.encode(envelope) + b"\n" + body


def read(source: str, holder: object, file: File, data: bytes) -> Delivery:
    """The delivery of a message that was received. May raise."""
    envelope, body = split(data)
    counters = counters_or_untried(envelope.counters) if envelope.stamp else UNTRIED
    if envelope.letter is not None:  # from the replays: it starts as its letter says
        counters = letter_read(source, file.id, "replayed", data).replayed()
    receipt = Receipt(holder, file.id, envelope.stamp or file.id)
    return Delivery(receipt, source, envelope.id, body, envelope.key, envelope.headers or NO_HEADERS, counters)


def not_read(source: str, holder: object, file: File, data: bytes, error: Exception) -> Unreadable:
    """Of a message that cannot be read: its body, and the line before it as it is."""
    line, _, body = data.partition(b"\n")
    return unreadable(Receipt(holder, file.id, file.id), source, file.id, body, line, error)


def letter_read(source: str, id_: str, state: str, data: bytes) -> DeadLetter:
    """A dead letter from its file."""
    try:
        envelope, body = split(data)
    except (msgspec.MsgspecError, ValueError):
        envelope, body = Envelope(id_), data
    message = Message(envelope.id, source, body, envelope.key, envelope.headers)

    def foreign() -> DeadLetter:
        return foreign_letter(message, "something other than unpoison put it here", "folder.Unknown", 0.0)

    return letter_of(envelope.letter, message, foreign, id_=f"{source}-{id_}", state=state)
