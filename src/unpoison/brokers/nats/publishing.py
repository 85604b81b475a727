"""Publish messages, and say what became of each; make the copies that are stored for retries and dead letters.

The stream that stored a message answers, and a server that did not store it says why. If the connection is lost first, or the
time is over, the message may be stored.
"""

from collections.abc import Mapping, Sequence

from unpoison.brokers.nats import envelope, letters
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.connection import NO_RESPONDERS
from unpoison.brokers.nats.envelope import MESSAGE_ID, line, place
from unpoison.brokers.nats.topology import Topic
from unpoison.brokers.nats.writing import DENIED, NO_ANSWER, NOT_SENT, Copy, No
from unpoison.errors import BrokerUnavailable, ConfigError, PayloadError, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Dead, Kept, Published, Refused, not_sent, without_source
from unpoison.port.copying.settling import Receipt


def outgoing(client: Client, topic: Topic, message: Outgoing, limit: int) -> Copy:
    """What is stored for a message that is published. `limit` is how many bytes the server takes."""
    target = topic.names.again if message.delay > 0 else message.source
    subject, extra = client.schedule(topic, message.delay, target)
    block = envelope.published(message, extra)
    size = len(block) + len(message.body)
    if size > limit:
        raise PayloadError(
            f"Message {message.id!r} has {size:,} bytes with its headers; this NATS server takes {limit:,} at most (max_payload)."
        )
    return Copy(subject, block, message.body)


def copy_of(client: Client, item: Kept | Dead) -> Copy:
    """What is stored for a message that is kept for another start, or given up."""
    return _kept(client, item) if isinstance(item, Kept) else _letter(client, item)


def _kept(client: Client, item: Kept) -> Copy:
    """Named after where the original is: sent again, since an answer got lost, it is stored once."""
    receipt: Receipt = item.delivery.receipt
    where = place(receipt.handle)
    topic = client.topic(item.delivery.source)
    target = topic.names.suspects if item.counters.alone else topic.names.again
    subject, extra = client.schedule(topic, item.after, target)
    seen = envelope.look_safely(receipt.envelope, where)
    block = envelope.copied(seen, receipt.envelope, item.counters, [*extra, line(MESSAGE_ID, where)])
    return Copy(subject, block, item.delivery.body)


def _letter(client: Client, item: Dead) -> Copy:
    receipt: Receipt = item.delivery.receipt
    names = client.topic(item.delivery.source).names
    seen = envelope.look_safely(receipt.envelope, place(receipt.handle))
    return Copy(names.dead, letters.written(item.letter, seen, receipt.envelope, names.group), item.delivery.body)


_REFUSALS = {
    DENIED: Refusal.NOT_PERMITTED,
    NOT_SENT: Refusal.NOT_SENT,
    NO_RESPONDERS: Refusal.NO_SUCH_SOURCE,
    **dict.fromkeys((10054, 10097), Refusal.TOO_LARGE),  # body, headers
    **dict.fromkeys((10077, 10047, 10028, 10023, 10002), Refusal.NO_ROOM),  # stream, disk, memory, server, account
}


def publish(client: Client, messages: Sequence[Outgoing]) -> Published:
    """Store these; says what became of each. Raises BrokerUnavailable only if nothing was sent."""
    topics: dict[str, Topic] = {}
    refused = without_source(messages, lambda source: topics.update({source: client.topic(source)}))
    limit = client.connection().max_payload
    wanted: dict[int, Copy] = {}
    for number, message in enumerate(messages):
        if number not in refused:
            try:
                wanted[number] = outgoing(client, topics[message.source], message, limit)
            except PayloadError as error:
                refused[number] = not_sent(error, Refusal.TOO_LARGE)
            except BrokerUnavailable as error:
                refused[number] = not_sent(error)
    failed = _send(client, messages, wanted)
    created = tuple(client.created)
    client.created.clear()
    if not failed and not refused:
        return Published(created=created) if created else STORED
    unknown = {number: _told(why) for number, why in failed.items() if why.code == NO_ANSWER}
    answered = {number: why for number, why in failed.items() if why.code != NO_ANSWER}
    refused |= {number: Refused(_REFUSALS.get(why.code, Refusal.OTHER), _told(why)) for number, why in answered.items()}
    return Published(refused, unknown, created)


def _send(client: Client, messages: Sequence[Outgoing], wanted: Mapping[int, Copy]) -> dict[int, No]:
    """Why some of these are not stored. What no stream took is sent once more, after its stream was created again."""
    numbers = list(wanted)
    failed = {numbers[index]: why for index, why in client.store(list(wanted.values())).items()}
    lost = [number for number, why in failed.items() if why.code == NO_RESPONDERS]
    if not lost:
        return failed
    try:
        for source in {messages[number].source for number in lost}:
            client.remake(source)
        again = client.store([wanted[number] for number in lost])
    except (ConfigError, BrokerUnavailable) as error:
        return failed | dict.fromkeys(lost, No(NO_RESPONDERS, str(error)))
    stored = [number for index, number in enumerate(lost) if index not in again]
    failed |= {lost[index]: why for index, why in again.items()}
    return {number: why for number, why in failed.items() if number not in stored}


def _told(why: No) -> str:
    text = why.text.rstrip(".")
    return f"NATS did not store it: {text} (code {why.code})." if why.code > 0 else f"{text}."
