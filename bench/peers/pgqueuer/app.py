"""pgqueuer, on PostgreSQL."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import work
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.executors import DatabaseRetryEntrypointExecutor
from pgqueuer.models import Job
from pgqueuer.queries import Queries

SETTINGS = work.SETTINGS


@asynccontextmanager
async def main() -> AsyncGenerator[PgQueuer]:
    """What `pgq run app:main` runs."""
    connection = await asyncpg.connect(work.URL)
    queuer = PgQueuer(AsyncpgDriver(connection))

    def retried(parameters: object) -> DatabaseRetryEntrypointExecutor:
        return DatabaseRetryEntrypointExecutor(parameters=parameters, max_attempts=SETTINGS["max_attempts"])

    @queuer.entrypoint("orders", on_failure=SETTINGS["on_failure"], executor_factory=retried)
    async def handle(job: Job) -> None:
        work.handle(json.loads(job.payload or b""))

    try:
        yield queuer
    finally:
        await connection.close()


def _publish(bodies: Sequence[bytes], *, install: bool = False) -> None:
    async def all_of_them() -> None:
        connection = await asyncpg.connect(work.URL)
        queries = Queries(AsyncpgDriver(connection))
        if install:
            await queries.install()
        await queries.enqueue(["orders"] * len(bodies), list(bodies), [0] * len(bodies))
        await connection.close()

    asyncio.run(all_of_them())


def publish(orders: Sequence[work.Order]) -> None:
    _publish([json.dumps(order, separators=(",", ":")).encode() for order in orders], install=True)


def garbage(body: bytes) -> None:
    _publish([body])
