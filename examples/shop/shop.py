"""A small shop: three sources on one SQLite file, with the kinds of trouble that real shops have.

Run it from the folder that holds the README: unpoison run shop:app. On a server: set SHOP_URL to its address.
"""

import os
from dataclasses import dataclass

from unpoison import App, Backoff, Delivery, Discard, RetryLater

app = App(os.environ.get("SHOP_URL", "sqlite:///shop.db"))

PRICES = {"book": 12.0, "lamp": 30.0}


@dataclass
class Order:
    id: int
    item: str
    email: str


@app.consumer("orders", max_attempts=3, backoff=Backoff.exponential(base=0.1, max=1))
def ship(order: Order) -> None:
    """Ship an order and tell the customer. An item without a price raises KeyError: a bug to fix, then replay."""
    if order.item == "test":
        raise Discard("a test order of the monitoring")
    total = PRICES[order.item]
    app.publish("emails", {"to": order.email, "text": f"{order.item} is on its way, {total:.2f} €"})


@app.consumer("emails", max_attempts=3, backoff=Backoff.exponential(base=0.1, max=1))
async def send(email: dict[str, str], delivery: Delivery) -> None:
    """Send an email. The mail server hangs up on every first attempt; the second one works."""
    if delivery.attempt == 1:
        raise ConnectionError("the mail server hung up")
    print(f"to {email['to']}: {email['text']}", flush=True)


@app.consumer("refunds", concurrency=1)
def refund(body: bytes, delivery: Delivery) -> None:
    """Refund a payment. While the bank is closed (a header says so) it is retried later, without being charged an attempt."""
    if delivery.headers.get("bank") == "closed":
        raise RetryLater(after=3600)
    print(f"refunded {len(body)} bytes", flush=True)
