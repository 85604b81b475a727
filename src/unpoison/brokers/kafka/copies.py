"""What is stored when a message is published, kept for another start, or must outlive its partition's move?"""

from unpoison.brokers.kafka import envelope
from unpoison.brokers.kafka.envelope import DUE, HOLDER, REF, Copy
from unpoison.brokers.kafka.names import HELD, LANE, Names, tier
from unpoison.brokers.kafka.part import Part
from unpoison.brokers.kafka.record import Record
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Kept


def outgoing(names: Names, message: Outgoing, now: float) -> Copy:
    headers = envelope.sent(message.id, message.headers)
    key = None if message.key is None else message.key.encode()
    if message.delay <= 0:
        return Copy(names.topic, message.body, key, headers)
    headers.append((DUE, f"{now + message.delay:.3f}".encode()))
    return Copy(names.retry, message.body, key, headers, tier(message.delay))


def kept(names: Names, item: Kept, record: Record, now: float) -> Copy:
    """For another start, in the group's own topic: other groups have nothing to do with it."""
    extra = {DUE: f"{now + item.after:.3f}"} if item.after > 0 else {}
    headers = envelope.copied(record, envelope.look_safely(record, names.topic), item.counters, extra)
    # What must run alone and has to wait is fetched when its time has come, and then set aside into the lane.
    partition = LANE if item.counters.alone and item.after <= 0 else tier(item.after)
    return Copy(names.retry, record.value(), record.key(), headers, partition)


def counters_of(part: Part, record: Record, counters: Counters) -> Counters:
    """What is known of its starts: from its headers, and from what earlier owners of the partition left in the metadata."""
    offset = record.offset()
    for _ in range(part.levels.get(offset, 0)):
        counters = counters.returned()
    for start in part.starts.get(offset, ()):
        counters = counters.marked(start.by, start.at)
    return counters


def held(names: Names, part: Part, record: Record, holder: str) -> tuple[str, Copy]:
    """For a message that runs here while its partition goes elsewhere: nobody else starts it while we live."""
    ref = f"{part.topic}/{part.number}/{record.offset()}#{holder}"
    seen = envelope.look_safely(record, names.topic)
    headers = envelope.copied(record, seen, counters_of(part, record, seen.counters), {HOLDER: holder, REF: ref})
    return ref, Copy(names.retry, record.value(), record.key(), headers, HELD)


def note(names: Names, ref: str) -> Copy:
    """The holder has settled it."""
    return Copy(names.retry, None, None, [(REF, ref.encode())], HELD)
