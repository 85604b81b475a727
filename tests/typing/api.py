"""What does a type checker make of the code that people write? Checked by `make types`, never run.

Where misuse must be noticed an ignore stands behind it: if it ever goes unnoticed, the ignore is reported as unused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict, assert_type

import msgspec

from unpoison import (
    App,
    Backoff,
    DeadLetter,
    Delivery,
    Discard,
    DLQManager,
    ErrorClassification,
    Filter,
    Message,
    MessageMetadata,
    Permanent,
    PoisonPillHandler,
    Redact,
    RetryLater,
    RunResult,
    Selection,
    Tally,
    Throttled,
)


class Order(msgspec.Struct):
    id: int
    total: float


@dataclass
class Refund:
    order: int


class Parcel(TypedDict):
    weight: float


app = App("sqlite:///shop.db", redact=["body.customer.email", Redact("body.card.cvv", action="drop", searchable=False)])


@app.consumer("orders", max_attempts=5, backoff=Backoff.exponential(base=1, max=60), timeout=300)
def ship(order: Order) -> str:
    if order.total < 0:
        raise Permanent("a total below zero")
    if order.total == 0:
        raise Discard("nothing to ship")
    return "shipped"


@app.consumer("refunds", max_attempts=None, timeout=timedelta(minutes=1), max_age=None, concurrency=4)
async def refund(refund: Refund, delivery: Delivery) -> None:
    assert_type(delivery.id, str)
    assert_type(delivery.attempt, int)
    assert_type(delivery.returned, bool)
    assert_type(delivery.key, str | None)
    assert_type(delivery.headers, Mapping[str, str])
    if delivery.attempt == 1:
        raise RetryLater(after=timedelta(minutes=5))
    raise Throttled(retry_after=30)


@app.consumer("parcels", schema=Parcel, key_from="body:customer.id")
def weigh(parcel: Parcel) -> float:
    return parcel["weight"]


def handlers_stay_plain_functions() -> None:
    assert_type(ship(Order(1, 9.99)), str)
    assert_type(weigh({"weight": 1.5}), float)
    ship("an order")  # type: ignore[arg-type]
    ship()  # type: ignore[call-arg]
    ship.delay(Order(1, 9.99))  # type: ignore[attr-defined]


async def async_handlers_stay_coroutine_functions(delivery: Delivery) -> None:
    awaited = refund(Refund(1), delivery)
    await awaited
    await refund(1, delivery)  # type: ignore[arg-type]


def a_misspelt_option_is_noticed() -> None:
    app.consumer("orders", max_attempt=5)  # type: ignore[call-arg]
    app.consumer("orders", backoff=60)  # type: ignore[arg-type]
    app.publish("orders", {}, headers={"tries": 1})  # type: ignore[dict-item]


def publishing() -> None:
    assert_type(app.publish("orders", {"id": 1, "total": 9.99}, key="customer-7"), str)
    assert_type(app.publish("orders", b"raw", headers={"tenant": "a"}, delay=timedelta(hours=1), id="order-1"), str)
    assert_type(app.publish_many("orders", (Order(n, 1.0) for n in range(3))), list[str])


async def publishing_on_an_event_loop() -> None:
    assert_type(await app.publish_async("orders", Order(1, 9.99), delay=1.5), str)
    app.publish_async("orders", Order(1, 9.99))  # type: ignore[unused-coroutine]


def dead_letters() -> None:
    dlq = app.dlq("orders")
    assert_type(dlq, DLQManager)
    assert_type(dlq.count(), int)
    letters = dlq.peek(limit=10)
    assert_type(letters, list[DeadLetter])
    assert_type(letters[0].body, bytes)
    assert_type(letters[0].message, Message)
    assert_type(dlq.replay_one().count, int)
    assert_type(dlq.replay_one(letters[0].id).replayed, tuple[str, ...])
    assert_type(dlq.replay_all().gone, tuple[str, ...])
    assert_type(dlq.discard(letters[0].id), DeadLetter)
    assert_type(dlq.purge().purged, int)
    letters[0].state = "replayed"  # type: ignore[misc]


def dead_letters_by_a_filter() -> None:
    dlq = app.dlq("orders")
    old = Filter.parse("error:timeout age>1h")
    assert_type(old.matches(dlq.peek()[0]), bool)
    for letter in dlq.letters(where=old, limit=5):
        assert_type(letter, DeadLetter)
    chosen = dlq.select("body.total>100", state=None)
    assert_type(chosen, Selection)
    assert_type(chosen.ids, tuple[str, ...])
    assert_type(chosen.where, Filter)
    assert_type(dlq.count("class:crash"), int)
    assert_type(dlq.replay_all(where=chosen).replayed, tuple[str, ...])
    assert_type(dlq.discard_all(where=old).discarded, tuple[str, ...])
    assert_type(dlq.purge(where="-state:dead").history, int)
    dlq.replay_all(where=lambda letter: True)  # type: ignore[arg-type]
    dlq.select(chosen)  # type: ignore[arg-type]


def telling(message: Message, metadata: MessageMetadata, exc: BaseException) -> None: ...


def waiting(message: Message, metadata: MessageMetadata, delay: float) -> None: ...


def classifier(exc: BaseException) -> ErrorClassification | None:
    return ErrorClassification.TRANSIENT if "deadlock" in str(exc) else None


def deciding(exc: ValueError) -> None:
    handler = PoisonPillHandler(max_attempts=3, error_classifier=classifier, on_dlq=telling, on_retry=waiting)
    metadata = MessageMetadata("order-1", attempt=2, max_attempts=None)
    assert_type(handler.classify_error(exc), ErrorClassification)
    assert_type(handler.should_retry(metadata, exc), bool)
    app.consumer("orders", handler=handler)
    app.consumer("orders", on_dlq=telling, on_retry=waiting)
    app.consumer("orders", on_failure=telling)
    app.on_failure(waiting)  # type: ignore[arg-type]
    app.consumer("orders", on_retry=telling)  # type: ignore[arg-type]
    metadata.attempt = 3  # type: ignore[misc]
    PoisonPillHandler(on_retry=telling)  # type: ignore[arg-type]
    PoisonPillHandler(max_attempts="3")  # type: ignore[arg-type]


class Cautious(PoisonPillHandler):
    """A subclass that retries less."""

    def should_retry(self, metadata: MessageMetadata, exc: BaseException) -> bool:
        return metadata.attempt < 2 and super().should_retry(metadata, exc)


def running() -> None:
    result = App("memory://", grace=timedelta(seconds=10)).run(until_empty=True)
    assert_type(result, RunResult)
    assert_type(result.sources, Mapping[str, Tally])
    assert_type(result.sources["orders"].dead, int)
    assert_type(result.total.done, int)
    assert_type(result.stopped_by, int | None)
    result.stop()  # type: ignore[attr-defined]
    list(app.consumers)  # type: ignore[attr-defined]
    App(1)  # type: ignore[arg-type]
