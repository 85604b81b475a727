"""What does the demonstration consume? A shop's orders, on the broker that BEZOAR_URL names.

An app like any user's: workers import it by its name.
"""

import msgspec

from bezoar.app import App
from bezoar.backoff import Backoff
from bezoar.errors import Discard
from bezoar.message import Delivery

SOURCE = "orders"

app = App()


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    item: str
    total: float
    customer: str | None = None


@app.consumer(SOURCE, max_attempts=3, backoff=Backoff.exponential(base=0.05, max=0.2))
def ship(order: Order, delivery: Delivery) -> str:
    """Ship an order, with the kinds of trouble that a shop has."""
    if order.item == "test":
        raise Discard("an order of the monitoring")
    if order.item == "lamp" and delivery.attempt < 3:
        raise ConnectionError("the warehouse hung up")
    if order.item == "piano":
        raise TimeoutError("no carrier answered")
    return f"{order.item} for {order.customer.title()}"  # type: ignore[union-attr]  # the bug: nobody thought of guests


def published() -> list[bytes]:
    """Twenty orders. Most are sound; each of the others is poison of its own kind."""
    orders = {number: Order(number, "book", 9.5 + number, "ada") for number in range(1, 21)}
    orders[4].item = "lamp"
    orders[8].item = "test"
    orders[11].customer = None
    orders[17].item = "piano"
    bodies = {number: msgspec.json.encode(order) for number, order in orders.items()}
    bodies[6] = bodies[6][:-9]
    bodies[14] = bodies[14].replace(b"23.5", b'"free"')
    return list(bodies.values())
