"""What do the messages look like? Orders of 256 bytes as JSON, and a handler that looks one value up."""

from typing import Any

import msgspec

SIZE = 256


def order(number: int) -> dict[str, Any]:
    """An order whose JSON is 256 bytes long, whatever its number."""
    made = {
        "id": number,
        "customer": {"id": f"customer-{number % 1000}", "country": "PT"},
        "total": 129.5,
        "currency": "EUR",
        "items": [{"sku": "A-1001", "count": 2, "price": 39.75}, {"sku": "B-2002", "count": 1, "price": 50.0}],
        "note": "",
    }
    made["note"] = "x" * (SIZE - len(msgspec.json.encode(made)))
    return made


def bodies(count: int) -> list[bytes]:
    return [msgspec.json.encode(order(number)) for number in range(count)]


def handle(order: dict[str, Any]) -> None:
    """The same handler on every side."""
    order["total"]
