"""FastStream on Redis Streams: one subscriber reads what is new, a second one takes over what a dead worker has left.

In batches, the handler gets a hundred orders in one call, and they are acknowledged together.
"""

import asyncio
from collections.abc import Sequence

import redis
import work
from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub

SETTINGS = work.SETTINGS
POLICY = AckPolicy(SETTINGS["ack_policy"])

broker = RedisBroker(work.URL, apply_types=SETTINGS["apply_types"], logger=None)
app = FastStream(broker)

new = StreamSub("orders", group="workers", consumer="one", batch=SETTINGS["batch"], max_records=SETTINGS["max_records"])
left_behind = StreamSub(
    "orders", group="workers", consumer="two", batch=SETTINGS["batch"], min_idle_time=SETTINGS["min_idle_time"]
)

if SETTINGS["batch"]:

    @broker.subscriber(stream=left_behind, ack_policy=POLICY)
    @broker.subscriber(stream=new, ack_policy=POLICY)
    async def handle_all(orders: list) -> None:
        for order in orders:
            work.handle(order)
else:

    @broker.subscriber(stream=left_behind, ack_policy=POLICY)
    @broker.subscriber(stream=new, ack_policy=POLICY)
    async def handle(order: dict) -> None:
        work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        async with broker:
            for chunk in work.chunks(orders, 100):
                await asyncio.gather(*[broker.publish(order, stream="orders") for order in chunk])

    asyncio.run(all_of_them())


def garbage(body: bytes) -> None:
    with redis.Redis.from_url(work.URL) as client:
        client.xadd("orders", {"__data__": body})


def prepare() -> None:
    with redis.Redis.from_url(work.URL) as client:
        client.xgroup_create("orders", "workers", "0", mkstream=True)
