"""procrastinate, on PostgreSQL. Its documentation advises a periodic task that retries what a dead worker has left."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import procrastinate
import work

SETTINGS = work.SETTINGS
# Nobody writes a line for each message here.
logging.getLogger("procrastinate").setLevel(logging.WARNING)

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=work.URL), worker_defaults=SETTINGS.get("worker_defaults", {})
)


@app.task(name="handle", queue="orders", retry=procrastinate.RetryStrategy(**SETTINGS["retry"]))
async def handle(order: work.Order) -> None:
    work.handle(order)


if "retry_stalled_jobs" in SETTINGS:

    @app.periodic(cron=SETTINGS["retry_stalled_jobs"]["cron"])
    @app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")
    async def retry_stalled_jobs(timestamp: int) -> None:
        del timestamp
        seconds = SETTINGS["retry_stalled_jobs"]["seconds_since_heartbeat"]
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=seconds):
            await app.job_manager.retry_job(job)


def publish(orders: Sequence[work.Order]) -> None:
    async def all_of_them() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for chunk in work.chunks(orders):
                jobs: list[dict[str, Any]] = [{"order": order} for order in chunk]
                await handle.batch_defer_async(*jobs)

    asyncio.run(all_of_them())


# No garbage: arguments are a jsonb column, and PostgreSQL refuses bytes that are no JSON.
