"""Quix Streams, on Kafka. Run with `python app.py`."""

from collections.abc import Sequence

import kafka_topic
import work
from quixstreams import Application

PLACE = kafka_topic.place()


def prepare() -> None:
    kafka_topic.create()


def publish(orders: Sequence[work.Order]) -> None:
    kafka_topic.publish(orders)


def garbage(body: bytes) -> None:
    kafka_topic.send([body])


def run() -> None:
    application = Application(
        PLACE.address, consumer_group=PLACE.group, auto_offset_reset="earliest", **work.SETTINGS["application"]
    )
    orders = application.dataframe(application.topic(PLACE.topic, value_deserializer="json"))
    orders.update(work.handle)
    application.run()


if __name__ == "__main__":
    run()
