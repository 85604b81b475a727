"""FastStream on Kafka, with the client of Confluent."""

from collections.abc import Sequence

import kafka_topic
import work
from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker

SETTINGS = work.SETTINGS
PLACE = kafka_topic.place()

broker = KafkaBroker(PLACE.address, apply_types=SETTINGS["apply_types"], logger=None)
app = FastStream(broker)
OPTIONS = {
    "group_id": PLACE.group,
    "auto_offset_reset": "earliest",
    "ack_policy": AckPolicy(SETTINGS["ack_policy"]),
    **SETTINGS["subscriber"],
}

if SETTINGS["subscriber"].get("batch"):

    @broker.subscriber(PLACE.topic, **OPTIONS)
    async def handle_all(orders: list) -> None:
        for order in orders:
            work.handle(order)
else:

    @broker.subscriber(PLACE.topic, **OPTIONS)
    async def handle(order: dict) -> None:
        work.handle(order)


def prepare() -> None:
    kafka_topic.create()


def publish(orders: Sequence[work.Order]) -> None:
    kafka_topic.publish(orders)


def garbage(body: bytes) -> None:
    kafka_topic.send([body])
