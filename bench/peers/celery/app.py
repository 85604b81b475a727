"""Celery, on RabbitMQ and on Redis."""

from collections.abc import Sequence

import work
from celery import Celery
from kombu import Exchange, Queue

SETTINGS = work.SETTINGS

app = Celery("orders", broker=work.URL)
app.conf.update(SETTINGS["configuration"])
app.conf.task_queues = [Queue("orders", Exchange(""), routing_key="orders", queue_arguments=SETTINGS.get("queue_arguments"))]
app.conf.task_default_queue = "orders"
app.conf.task_default_exchange = ""


@app.task(name="handle", max_retries=SETTINGS["max_retries"])
def handle(order: work.Order) -> None:
    work.handle(order)


def prepare() -> None:
    with app.connection_for_write() as connection:
        if "dead_letter_queue" in SETTINGS:
            Queue(SETTINGS["dead_letter_queue"], Exchange("")).bind(connection.default_channel).declare()
        app.conf.task_queues[0].bind(connection.default_channel).declare()


def publish(orders: Sequence[work.Order]) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for order in orders:
            handle.apply_async((order,), producer=producer)


def garbage(body: bytes) -> None:
    with app.connection_for_write() as connection:
        if connection.transport.driver_type == "redis":
            connection.default_channel.client.lpush("orders", body)
        else:
            with connection.Producer() as producer:
                producer.publish(body, routing_key="orders", content_type="application/octet-stream", content_encoding="binary")
