"""FastStream on RabbitMQ."""

import asyncio
from collections.abc import Sequence

import aio_pika
import work
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream.rabbit.schemas.queue import QueueType

SETTINGS = work.SETTINGS

broker = RabbitBroker(
    work.URL,
    default_channel=Channel(prefetch_count=SETTINGS["prefetch_count"]),
    apply_types=SETTINGS["apply_types"],
    logger=None,
)
app = FastStream(broker)
queue = RabbitQueue("orders", queue_type=QueueType(SETTINGS["queue_type"]), arguments=SETTINGS.get("queue_arguments"))


@broker.subscriber(queue, ack_policy=AckPolicy(SETTINGS["ack_policy"]))
async def handle(order: dict) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        async with broker:
            if "dead_letter_queue" in SETTINGS:
                await broker.declare_queue(RabbitQueue(SETTINGS["dead_letter_queue"]))
            await broker.declare_queue(queue)
            for chunk in work.chunks(orders):
                await asyncio.gather(*[broker.publish(order, queue, persist=True) for order in chunk])

    asyncio.run(all_of_them())


def garbage(body: bytes) -> None:
    async def put() -> None:
        async with await aio_pika.connect(work.URL) as connection:
            channel = await connection.channel()
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "orders")

    asyncio.run(put())
