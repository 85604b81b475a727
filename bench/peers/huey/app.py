"""huey, on a SQLite file. It takes a task off the queue before it runs it, and has no other way."""

from collections.abc import Sequence

import work
from huey import SqliteHuey

huey = SqliteHuey("orders", filename=work.URL.removeprefix("sqlite:///"), **work.SETTINGS["huey"])


@huey.task(**work.SETTINGS["task"])
def handle(order: work.Order) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    for order in orders:
        handle(order)


def garbage(body: bytes) -> None:
    huey.storage.enqueue(body)
