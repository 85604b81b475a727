"""How does a DLQ get many letters at once?

For each broker in the shape that a consumer writes them, but without a consumer: tens of thousands in a few seconds.
"""

import os
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from unpoison.brokers import broker_for
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.copies import letter_copy
from unpoison.brokers.rabbitmq.envelope import Receipt as RabbitMQReceipt
from unpoison.brokers.sqs import copies, envelope
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Broker, Dead, Settlement
from unpoison.port.copying.ids import new_letter_id
from unpoison.port.copying.settling import Receipt as SQSReceipt
from unpoison.testing import given

AT_ONCE = 2_000


def fill(url: str, source: str, count: int, size: int = 2_048) -> None:
    """So many letters, in order: the message of letter n has the id `message-n`, its body is n and then noise."""
    broker = broker_for(url)
    broker.open([source])
    try:
        write = _WRITERS.get(urlsplit(url).scheme, _by_settling)(broker, source)
        for start in range(0, count, AT_ONCE):
            write(list(_bodies(range(start, min(count, start + AT_ONCE)), size)))
    finally:
        broker.close()


def _bodies(numbers: range, size: int) -> Iterator[tuple[str, bytes]]:
    noise = os.urandom(size).hex().encode()
    for number in numbers:
        yield f"message-{number}", (str(number).encode() + b" " + noise)[:size]


Write = Callable[[list[tuple[str, bytes]]], None]


def _by_settling(broker: Broker, source: str) -> Write:
    """For every broker: publish, fetch, give up."""

    def write(letters: list[tuple[str, bytes]]) -> None:
        broker.publish([Outgoing(id_, source, body) for id_, body in letters])
        left = len(letters)
        while left:
            deliveries = broker.fetch(source, left)
            broker.settle(Settlement(dead=[Dead(each, given.letter_of(each)) for each in deliveries]))
            left -= len(deliveries)

    return write


def _into_rabbitmq(broker: Broker, source: str) -> Write:
    assert isinstance(broker, RabbitMQBroker)

    def write(letters: list[tuple[str, bytes]]) -> None:
        deliveries = [Delivery(RabbitMQReceipt(None, 0, properties.write(id_, [])), source, id_, body) for id_, body in letters]
        batch = broker.connections.store(
            [letter_copy(Dead(each, given.letter_of(each)), new_letter_id(source)) for each in deliveries]
        )
        assert all(batch.stored(number) for number in range(len(letters)))

    return write


def _into_sqs(broker: Broker, source: str) -> Write:
    assert isinstance(broker, SQSBroker)
    topic = broker.client.topic(source)

    def raw(id_: str, body: bytes) -> dict:
        text = body.decode("latin-1")
        sent = envelope.attributes(envelope.published(Outgoing(id_, source, body)), None)
        return {"MessageId": id_, "Body": text, "Attributes": {}, "MessageAttributes": sent, "ReceiptHandle": ""}

    def write(letters: list[tuple[str, bytes]]) -> None:
        deliveries = [Delivery(SQSReceipt(None, "", raw(id_, body)), source, id_, body) for id_, body in letters]
        refused = broker.client.store([copies.letter(topic, Dead(each, given.letter_of(each))) for each in deliveries])
        assert not refused

    return write


_WRITERS = {"amqp": _into_rabbitmq, "sqs": _into_sqs}
