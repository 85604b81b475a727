"""A message whose value is null: what a handler of each kind gets, and how it is skipped."""

import dataclasses
import io
from typing import Any, Union

import msgspec
import pydantic
import pytest
from rich.console import Console

from unpoison import App, Delivery
from unpoison.app_internals import consumers_of
from unpoison.body.guard import decoder
from unpoison.body.json_text import Unfit
from unpoison.brokers.memory import MemoryBroker
from unpoison.cli.screen import print_letter
from unpoison.errors import ConfigError
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters
from unpoison.testing import given
from unpoison.testing.running import Journal, drained


class Order(msgspec.Struct):
    id: int


class Model(pydantic.BaseModel):
    id: int


@dataclasses.dataclass
class Parcel:
    id: int


def decoded(annotation, body=None, schema=None):
    return decoder(annotation, schema, max_body=100, max_depth=64)(body)


@pytest.mark.parametrize("annotation", [Order | None, Model | None, Parcel | None, dict | None, list[int] | None, Any, None])
def test_a_handler_that_takes_none_gets_none(annotation):
    assert decoded(annotation) is None


@pytest.mark.parametrize("annotation", [bytes | None, str | None, Union[bytes, None]])  # noqa: UP007 - people write both
def test_a_handler_that_takes_the_raw_body_or_none_gets_none(annotation):
    assert decoded(annotation) is None


def test_a_handler_that_takes_the_raw_body_gets_an_empty_one():
    assert (decoded(bytes), decoded(str)) == (b"", "")


@pytest.mark.parametrize("annotation", [Order, Model, Parcel, dict, list[int], int])
def test_any_other_is_not_given_a_tombstone_and_told_what_to_do(annotation):
    with pytest.raises(Unfit) as refused:
        decoded(annotation)
    assert refused.value.rule == "tombstone"
    assert "its value is null" in refused.value.text
    assert "tombstones='skip'" in refused.value.text


def test_a_schema_decides_as_for_json_null():
    assert decoded(None, schema={"type": ["object", "null"]}) is None
    with pytest.raises(Unfit, match="is not of type 'object'") as refused:
        decoded(None, schema={"type": "object"})
    assert refused.value.rule == "tombstone"
    assert decoded(None, schema=lambda value: ("made of", value)) == ("made of", None)

    def of_bytes(body: bytes) -> bytes:
        return body + b"!"

    assert decoded(None, schema=of_bytes) == b"!"


@pytest.mark.parametrize(
    ("annotation", "body"), [(bytes | None, b'"x"'), (bytes | None, b""), (str | None, '"ü"'), (str | None, "")]
)
def test_a_raw_body_that_may_be_none_arrives_as_it_is(annotation, body):
    """It is the annotation of a handler for raw bodies and tombstones, and not of a JSON text or null."""
    assert decoded(annotation, body if isinstance(body, bytes) else body.encode()) == body


def test_a_raw_body_that_may_be_none_has_a_limit_too():
    with pytest.raises(Unfit, match="101 bytes"):
        decoded(bytes | None, bytes(101))


def with_tombstone(name, *, counters=None):
    """An app on a source that holds an order and a tombstone."""
    app = App(f"memory://{name}")
    app.publish("orders", {"id": 1})
    more = {} if counters is None else {"counters": counters}
    store = MemoryBroker(app.settings.url).store
    with store.changed:
        store.put(Delivery(0, "orders", "gone", b"", "customer-7", is_tombstone=True, **more), None)
    return app


@pytest.mark.parametrize("isolation", ["inline", "thread"])
def test_a_handler_in_this_process_tells_a_tombstone_from_a_body(isolation):
    app, seen = with_tombstone(f"tombstone-{isolation}"), []

    def handle(order: dict | None, delivery: Delivery) -> None:
        seen.append((order, delivery.is_tombstone, delivery.message.is_tombstone, delivery.body))

    drained(given.consumer(app, "orders", handle, isolation=isolation, concurrency=1))
    assert seen == [({"id": 1}, False, False, b'{"id":1}'), (None, True, True, b"")]


def test_an_async_handler_gets_none():
    app, seen = with_tombstone("tombstone-async"), []

    async def handle(order: dict | None) -> None:
        seen.append(order)

    drained(given.consumer(app, "orders", handle, isolation="thread"))
    assert sorted(seen, key=str) == [None, {"id": 1}]


def test_one_that_no_handler_takes_is_a_dead_letter_and_stays_a_tombstone_when_it_is_replayed():
    app, seen = with_tombstone("tombstone-dead"), []

    def ship(order: Order) -> None:
        seen.append(order)

    drained(given.consumer(app, "orders", ship))
    (letter,) = app.dlq("orders").peek()
    assert (letter.rule, letter.attempts, letter.is_tombstone, letter.message.key) == (
        "invalid: tombstone",
        0,
        True,
        "customer-7",
    )
    assert letter.as_json()["body"] is None
    assert "Annotate its payload with '| None'" in letter.error
    del consumers_of(app)["orders"]
    app.dlq("orders").replay_all()
    again = []

    def delete(order: Order | None, delivery: Delivery) -> None:
        again.append((order, delivery.is_tombstone))
        if delivery.attempt == 1:
            raise ConnectionError

    drained(given.consumer(app, "orders", delete, backoff=Backoff.immediate()))
    assert again == [(None, True)] * 2
    assert seen == [Order(1)]


@pytest.mark.parametrize(
    "counters", [None, Counters(attempts=1), Counters(vanished=2, alone=True)], ids=["new", "retried", "suspect"]
)
def test_tombstones_can_be_skipped_wherever_they_wait(counters):
    app, seen = with_tombstone(f"tombstone-skip-{id(counters)}", counters=counters), []

    def ship(order: Order) -> None:
        seen.append(order)

    with Journal() as journal:
        tally = drained(given.consumer(app, "orders", ship, tombstones="skip"))["orders"]
    assert (tally.done, tally.dead, tally.retried) == (2, 0, 0)
    assert seen == [Order(1)]
    assert app.dlq("orders").peek() == []
    assert len(journal.of("tombstones-skipped")) == 1
    assert "tombstones='skip'" in journal.of("tombstones-skipped")[0]


def test_another_word_for_what_to_do_with_tombstones_is_refused():
    with pytest.raises(ConfigError, match="tombstones must be 'handle' or 'skip', got 'drop'"):
        App("memory://").consumer("orders", tombstones="drop")(print)


def test_a_person_reads_that_a_letter_is_a_tombstone():
    app = with_tombstone("tombstone-shown")

    def ship(order: Order) -> None: ...

    drained(given.consumer(app, "orders", ship))
    (letter,) = app.dlq("orders").peek()
    screen = io.StringIO()
    print_letter(letter, Console(file=screen, width=200))
    assert "\nBody: null, a tombstone\n" in screen.getvalue()
