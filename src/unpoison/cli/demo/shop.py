"""What does the shop do with an order? The same function is called by unpoison's workers and by the plain loop beside them."""

import time

import msgspec

from unpoison.cli.demo.ledger import Ledger
from unpoison.cli.demo.trouble import MIB, TROUBLES, Shipping

WORK = 0.008
"""Seconds that shipping takes: the call to a carrier that a real shop would make here."""

MEMORY = 128 * MIB
"""What a process that ships orders may have."""

CATALOGUE = {"book": 9.5, "pen": 1.2, "mug": 7.9, "tea": 4.4, "map": 12.0} | dict.fromkeys(TROUBLES, 20.0)


class Order(msgspec.Struct):
    """What a customer wants."""

    id: int
    customer: str | None
    item: str
    quantity: int
    address: str
    note: str = ""


def ship(order: Order) -> None:
    """Ship an order, with the kinds of trouble that a shop has."""
    ledger = Ledger.of_this_process()
    ledger.write("start", order.id)
    price = CATALOGUE[order.item]
    if order.item in TROUBLES:
        TROUBLES[order.item](Shipping(order.id, ledger))
    order.address.encode("ascii")  # the carrier's labels know nothing else
    print_label(order.customer.title(), order.quantity * price)  # type: ignore[union-attr]  # the bug: nobody thought of guests
    ledger.write("done", order.id)


def print_label(name: str, value: float) -> str:
    time.sleep(WORK)
    return f"{name}: {value:.2f}"
