"""streaq, on Redis."""

import asyncio
from collections.abc import Sequence
from typing import Any

import work
from streaq import Worker

worker: "Worker[Any]" = Worker(redis_url=work.URL, queue_name="orders", **work.SETTINGS["worker"])


@worker.task(silent=True, **work.SETTINGS["task"])
async def handle(order: work.Order) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        async with worker:
            for chunk in work.chunks(orders):
                await worker.enqueue_many([handle.enqueue(order) for order in chunk])

    asyncio.run(all_of_them())


def garbage(body: bytes) -> None:
    """A task whose data are these bytes."""

    async def put() -> None:
        async with worker:
            task = handle.enqueue({})
            await worker.enqueue_many([task])
            await worker.redis.set(worker.task_key + task.id, body)

    asyncio.run(put())
