"""arq, on Redis. Run with `arq app.Worker`."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import work
from arq import create_pool
from arq.connections import RedisSettings

REDIS = RedisSettings.from_dsn(work.URL)


async def handle(_: dict[str, Any], order: work.Order) -> None:
    work.handle(order)


async def quiet(_: dict[str, Any]) -> None:
    """Nobody writes a line for each message here; its command has set up logging by now."""
    logging.getLogger("arq").setLevel(logging.WARNING)


class Worker:
    functions: ClassVar = [handle]
    on_startup = quiet
    redis_settings = REDIS


for name, value in work.SETTINGS.items():
    setattr(Worker, name, value)


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        pool = await create_pool(REDIS)
        for chunk in work.chunks(orders, 50):
            await asyncio.gather(*[pool.enqueue_job("handle", order) for order in chunk])
        await pool.aclose()

    asyncio.run(all_of_them())


def garbage(body: bytes) -> None:
    async def put() -> None:
        pool = await create_pool(REDIS)
        await pool.set("arq:job:garbage", body)
        await pool.zadd("arq:queue", {"garbage": 1})
        await pool.aclose()

    asyncio.run(put())
