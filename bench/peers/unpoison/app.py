"""unpoison, on every broker. Run with `unpoison run app:app`."""

from collections.abc import Sequence
from typing import Any

import work

from unpoison import App

app = App(work.URL + work.SETTINGS.get("url_options", ""))


@app.consumer("orders", **work.SETTINGS["consumer"])
def handle(order: dict[str, Any]) -> None:
    work.handle(order)


def publish(orders: Sequence[work.Order]) -> None:
    for chunk in work.chunks(orders, 10_000):
        app.publish_many("orders", chunk)


def garbage(body: bytes) -> None:
    app.publish("orders", body)
