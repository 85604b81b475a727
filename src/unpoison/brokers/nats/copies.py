"""What is stored for a message that is published, kept for another start, or given up?"""

from unpoison.brokers.nats import envelope, letters
from unpoison.brokers.nats.envelope import MESSAGE_ID, Receipt, line, place
from unpoison.brokers.nats.session import Session
from unpoison.brokers.nats.topology import Topic
from unpoison.brokers.nats.writing import Copy
from unpoison.errors import PayloadError
from unpoison.model.message import Outgoing
from unpoison.port.broker import Dead, Kept


def outgoing(session: Session, topic: Topic, message: Outgoing, limit: int) -> Copy:
    """`limit` is how many bytes the server takes."""
    target = topic.names.again if message.delay > 0 else message.source
    subject, extra = session.schedule(topic, message.delay, target)
    block = envelope.published(message, extra)
    size = len(block) + len(message.body)
    if size > limit:
        raise PayloadError(
            f"Message {message.id!r} has {size:,} bytes with its headers; this NATS server takes {limit:,} at most (max_payload)."
        )
    return Copy(subject, block, message.body)


def of(session: Session, item: Kept | Dead) -> Copy:
    return _kept(session, item) if isinstance(item, Kept) else _letter(session, item)


def _kept(session: Session, item: Kept) -> Copy:
    """Named after where the original is: sent again, since an answer got lost, it is stored once."""
    receipt: Receipt = item.delivery.receipt
    where = place(receipt.reply)
    topic = session.topic(item.delivery.source)
    target = topic.names.suspects if item.counters.alone else topic.names.again
    subject, extra = session.schedule(topic, item.after, target)
    seen = envelope.look_safely(receipt.block, where)
    block = envelope.copied(seen, receipt.block, item.counters, [*extra, line(MESSAGE_ID, where)])
    return Copy(subject, block, item.delivery.body)


def _letter(session: Session, item: Dead) -> Copy:
    receipt: Receipt = item.delivery.receipt
    names = session.topic(item.delivery.source).names
    seen = envelope.look_safely(receipt.block, place(receipt.reply))
    return Copy(names.dead, letters.written(item.letter, seen, receipt.block, names.group), item.delivery.body)
