"""rq, on Redis."""

from collections.abc import Sequence

import redis
import work
from rq import Queue, Retry

queue = Queue("orders", connection=redis.Redis.from_url(work.URL))


def handle(order: work.Order) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    options = work.SETTINGS["job"]
    for chunk in work.chunks(orders):
        queue.enqueue_many(
            [Queue.prepare_data("app.handle", (order,), retry=Retry(**work.SETTINGS["retry"]), **options) for order in chunk]
        )


def garbage(body: bytes) -> None:
    """A job whose data are these bytes: another program wrote it, or half of it."""
    [job] = queue.enqueue_many([Queue.prepare_data("app.handle", ({},), **work.SETTINGS["job"])])
    queue.connection.hset(job.key, "data", body)
