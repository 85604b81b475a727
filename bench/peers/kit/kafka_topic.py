"""How do the peers on Kafka find and fill their topic? Needs confluent-kafka, which both of them bring along."""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import work
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4


class Place(NamedTuple):
    address: str
    topic: str
    group: str


def place() -> Place:
    """A server has no databases: what belongs together has the same prefix."""
    url = urlsplit(work.URL)
    prefix = parse_qs(url.query).get("prefix", [""])[0]
    return Place(url.netloc, f"{prefix}orders", f"{prefix}workers")


def create() -> None:
    admin = AdminClient({"bootstrap.servers": place().address})
    for made in admin.create_topics([NewTopic(place().topic, work.SETTINGS.get("partitions", PARTITIONS), 1)]).values():
        made.result(30)


def publish(orders: Sequence[work.Order]) -> None:
    send(json.dumps(order, separators=(",", ":")).encode() for order in orders)


def send(bodies: Iterable[bytes]) -> None:
    """On the broker, all of them, when it returns."""
    producer = Producer(
        {"bootstrap.servers": place().address, "enable.idempotence": True, "queue.buffering.max.messages": 200_000}
    )
    lost: list[str] = []
    for body in bodies:
        producer.produce(place().topic, body, on_delivery=lambda error, _: lost.append(str(error)) if error else None)
        producer.poll(0)
    producer.flush(60)
    if lost:
        raise RuntimeError(f"{len(lost)} messages were not stored: {lost[0]}")
