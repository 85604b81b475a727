"""FastStream on NATS JetStream, pulling."""

import asyncio
from collections.abc import Sequence

import nats
import work
from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, PullSub
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

SETTINGS = work.SETTINGS

broker = NatsBroker(work.URL, apply_types=SETTINGS["apply_types"], logger=None)
app = FastStream(broker)


@broker.subscriber(
    "orders",
    stream=JStream("orders", declare=False),
    durable="workers",
    pull_sub=PullSub(batch_size=SETTINGS["pull_batch_size"]),
    ack_policy=AckPolicy(SETTINGS["ack_policy"]),
    max_workers=SETTINGS["max_workers"],
    config=ConsumerConfig(**SETTINGS["consumer"]),
)
async def handle(order: dict) -> None:
    work.handle(order)


async def _connected() -> tuple:
    connection = await nats.connect(work.URL)
    return connection, connection.jetstream(publish_async_max_pending=1_000)


def prepare() -> None:
    async def make() -> None:
        connection, jetstream = await _connected()
        await jetstream.add_stream(StreamConfig(name="orders", subjects=["orders"], retention=RetentionPolicy.WORK_QUEUE))
        await connection.close()

    asyncio.run(make())


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        async with broker:
            for chunk in work.chunks(orders):
                await asyncio.gather(*[broker.publish(order, "orders", stream="orders") for order in chunk])

    asyncio.run(all_of_them())


def garbage(body: bytes) -> None:
    async def put() -> None:
        connection, jetstream = await _connected()
        await jetstream.publish("orders", body)
        await connection.close()

    asyncio.run(put())
