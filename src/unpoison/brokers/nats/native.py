"""What does NATS itself say about a message? Of a retry: what it said about the original."""

from unpoison.brokers.nats import envelope
from unpoison.brokers.nats.envelope import ATTEMPTS, KEY, MORE, STAMP, Receipt, place
from unpoison.model.message import Delivery, Native, as_text

_BILLION = 10**9


def native(delivery: Delivery) -> Native:
    receipt: Receipt = delivery.receipt
    where = place(receipt.reply)
    if envelope.is_plain(receipt.block):
        return Native(properties=_properties(delivery.source, where.stream, where.number, where.stored_at))
    pairs = envelope.pairs(receipt.block)
    found = dict(reversed(pairs))
    rest = envelope.more(found.get(MORE))
    key = found.get(KEY, None if rest.key is None else rest.key.encode())
    headers = [*envelope.senders(pairs, is_copy=STAMP in found), *((name, text.encode()) for name, text in rest.headers.items())]
    if envelope.has_foreign_attempts(receipt.block):
        headers.append((as_text(ATTEMPTS), found[ATTEMPTS]))
    stream, number, stored_at = envelope.look(receipt.block, where).stamp.rsplit(":", 2)
    return Native(key, tuple(headers), _properties(delivery.source, stream, int(number), int(stored_at)))


def _properties(source: str, stream: str, number: int, stored_at: int) -> dict[str, str | int | float]:
    """A source is one subject, so that is what the message was published to."""
    return {"subject": source, "stream": stream, "sequence": number, "timestamp": stored_at / _BILLION}
