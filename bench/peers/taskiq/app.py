"""Taskiq, on RabbitMQ, Redis Streams and NATS JetStream."""

import asyncio
from collections.abc import Sequence
from typing import Any

import work
from taskiq import AsyncBroker, SmartRetryMiddleware

SETTINGS = work.SETTINGS


def made() -> AsyncBroker:
    options: dict[str, Any] = SETTINGS["broker"]
    if work.URL.startswith("amqp"):
        from taskiq_aio_pika import AioPikaBroker  # noqa: PLC0415 - one of three
        from taskiq_aio_pika.queue import Queue, QueueType  # noqa: PLC0415

        queue = Queue(name="orders", type=QueueType(SETTINGS["queue_type"]), arguments=SETTINGS.get("queue_arguments", {}))
        return AioPikaBroker(work.URL, task_queues=[queue], **options)
    if work.URL.startswith("redis"):
        from taskiq_redis import RedisStreamBroker  # noqa: PLC0415

        return RedisStreamBroker(work.URL, queue_name="orders", **options)
    from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig  # noqa: PLC0415
    from taskiq_nats import PullBasedJetStreamBroker  # noqa: PLC0415

    return PullBasedJetStreamBroker(
        work.URL,
        subject="orders",
        stream_name="orders",
        durable="workers",
        stream_config=StreamConfig(name="orders", subjects=["orders"], retention=RetentionPolicy.WORK_QUEUE),
        consumer_config=ConsumerConfig(durable_name="workers", **SETTINGS["consumer"]),
        **options,
    )


broker = made().with_middlewares(SmartRetryMiddleware(default_retry_count=SETTINGS["retry_count"]))


@broker.task(task_name="handle", retry_on_error=True)
async def handle(order: work.Order) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        await broker.startup()
        for chunk in work.chunks(orders, 100):
            await asyncio.gather(*[handle.kiq(order) for order in chunk])
        await broker.shutdown()

    asyncio.run(all_of_them())


def garbage(body: bytes) -> None:
    if work.URL.startswith("amqp"):
        asyncio.run(_into_rabbitmq(body))
    elif work.URL.startswith("redis"):
        import redis  # noqa: PLC0415

        with redis.Redis.from_url(work.URL) as client:
            client.xadd("orders", {"data": body})
    else:
        asyncio.run(_into_nats(body))


async def _into_rabbitmq(body: bytes) -> None:
    import aio_pika  # noqa: PLC0415

    async with await aio_pika.connect(work.URL) as connection:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await (await connection.channel()).default_exchange.publish(message, "orders")


async def _into_nats(body: bytes) -> None:
    import nats  # noqa: PLC0415

    connection = await nats.connect(work.URL)
    await connection.jetstream().publish("orders", body)
    await connection.close()
