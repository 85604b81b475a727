"""Dramatiq, on RabbitMQ and on Redis."""

import uuid
from collections.abc import Sequence

import dramatiq
import work

SETTINGS = work.SETTINGS

if work.URL.startswith("amqp"):
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=work.URL, **SETTINGS["broker"])
else:
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=work.URL, **SETTINGS["broker"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="orders", **SETTINGS["actor"])
def handle(order: work.Order) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    for order in orders:
        handle.send(order)


def garbage(body: bytes) -> None:
    if work.URL.startswith("amqp"):
        broker.channel.basic_publish("", "orders", body)
    else:
        message_id = str(uuid.uuid4())
        broker.client.hset("dramatiq:orders.msgs", message_id, body)
        broker.client.rpush("dramatiq:orders", message_id)
