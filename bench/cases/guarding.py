"""What does the guard cost a message that has nothing wrong with it?"""

import timeit
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.cases import orders
from bench.harness.figures import Row, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison.body.guard import decoder
from unpoison.decide.options import Settings

CALLS = 50_000


class Customer(msgspec.Struct):
    """Who ordered."""

    id: str
    country: str


class Item(msgspec.Struct):
    """A line of an order."""

    sku: str
    count: int
    price: float


class Order(msgspec.Struct):
    """The order as a type."""

    id: int
    customer: Customer
    total: float
    currency: str
    items: list[Item]
    note: str


@benchmark("guard", "Decoding with the guard (size, depth, numbers, schema), beside msgspec alone")
def guard(rounds: Rounds) -> Sequence[Row]:
    rows: list[Row] = []
    for label, kind in {"dict": dict[str, Any], "Struct": Order}.items():
        settings = Settings("memory://")
        guarded = decoder(kind, None, max_body=settings.max_body, max_depth=settings.max_depth)
        bare: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        taken = rounds.interleaved({f"msgspec alone, {label}": _timed(bare), f"with the guard, {label}": _timed(guarded)})
        rows += _rows(taken)
    return rows


def _rows(taken: dict[str, list[float]]) -> list[Row]:
    """The last row is what the guard adds."""
    bare, guarded = taken.values()
    added = [mine - theirs for mine, theirs in zip(guarded, bare, strict=True)]
    labels = list(taken)
    times = Spread.of([mine / theirs for mine, theirs in zip(guarded, bare, strict=True)])
    return [
        Row(labels[0], Spread.of(bare), "ns"),
        Row(labels[1], Spread.of(guarded), "ns", ratio=times),
        Row(f"{labels[1]}: added", Spread.of(added), "ns"),
    ]


def _timed(decode: Callable[[bytes], Any]) -> Callable[[], float]:
    """Nanoseconds per message."""
    body = orders.bodies(1)[0]
    return lambda: timeit.timeit(lambda: decode(body), number=CALLS) / CALLS * 1e9
