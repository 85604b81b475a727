"""What a handler sees of a message is the same on every broker: texts by one rule, and beside them what the broker really has."""

from collections.abc import Callable
from typing import Any

from unpoison.app import App
from unpoison.errors import Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery, Native, text_headers
from unpoison.testing import given
from unpoison.testing.lab import Lab
from unpoison.testing.running import drained

HEADERS = [("plain", "grüße".encode()), ("odd", b"a\xff\x01"), ("twice", b"first"), ("twice", b"last")]
KEY = b"key-\xfe"


def test_texts_are_made_of_any_headers_by_one_rule_on_every_broker(lab: Lab) -> None:
    """Whoever sent them, and whichever bytes they are: what is no UTF-8 is escaped, and of two with one name the last counts."""
    sent = lab.send_foreign(b"1", KEY, HEADERS)
    (seen,) = _seen(lab)
    assert (seen.body, seen.id != "", seen.is_tombstone) == (b"1", True, False)
    assert seen.native.key == sent.key
    assert seen.key == (None if sent.key is None else "key-\\xfe" if sent.key == KEY else sent.key.decode())
    assert sorted(seen.native.headers, key=_name) == sorted(sent.headers, key=_name)  # attributes of SQS are in no order
    expected = {"plain": "grüße", "odd": "a\\xff\x01", "twice": "last"}
    assert dict(seen.headers) == {name: expected[name] for name, _ in sent.headers}
    assert {name: seen.native.properties[name] for name in sent.properties} == sent.properties


def test_natives_stay_what_they_were_through_retry_dead_letter_and_replay(lab: Lab) -> None:
    bodies = [b"1", b"2"] if type(lab).send_foreign is not Lab.send_foreign else [b"2"]
    if b"1" in bodies:
        lab.send_foreign(b"1", KEY, HEADERS)
    lab.app().publish("orders", b"2", key="k", headers={"trace": "世界", "empty": ""})
    first, again, replayed = _three_starts(lab, len(bodies))
    for body in bodies:
        native = first[body].native
        for later in (again[body].native, replayed[body].native):
            assert later.key == native.key
            assert sorted(later.headers, key=_name) == sorted(native.headers, key=_name)
            assert later.properties.keys() == native.properties.keys()
            for name in lab.lasting:
                assert later.properties[name] == native.properties[name], name


def test_what_unpoison_sends_is_native_too_without_headers_of_its_own(lab: Lab) -> None:
    app = lab.app()
    app.publish("orders", b"1", key="ключ", headers={"trace": "世界", "x": ""})
    app.publish("orders", b"2")
    full, bare = sorted(_seen(lab, app), key=lambda delivery: delivery.body)
    assert full.native.key == "ключ".encode()
    assert sorted(full.native.headers) == [("trace", "世界".encode()), ("x", b"")]
    assert dict(text_headers(full.native.headers)) == dict(full.headers)
    assert (bare.native.key, bare.native.headers) == (None, ())
    assert set(bare.native.properties) == set(full.native.properties)


def test_a_handler_that_takes_no_delivery_costs_no_native(lab: Lab) -> None:
    """Nobody asks the adapter for what nobody reads."""
    asked: list[Delivery] = []
    app = lab.app()
    app.publish("orders", b"1")

    def handle(body: bytes) -> None: ...

    broker = lab.broker("orders")
    broker.native = _asking(asked)  # type: ignore[attr-defined]
    given.consumed(given.consumer(app, "orders", handle), "orders", broker)
    assert asked == []


def _name(header: tuple[str, Any]) -> str:
    return header[0]


def _asking(asked: list[Delivery]) -> Callable[[Delivery], Native]:
    def native(delivery: Delivery) -> Native:
        asked.append(delivery)
        return Native()

    return native


def _seen(lab: Lab, app: App | None = None) -> list[Delivery]:
    seen: list[Delivery] = []

    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery)

    drained(given.consumer(app or lab.app(), "orders", handle))
    return seen


def _three_starts(lab: Lab, count: int) -> list[dict[bytes, Delivery]]:
    """A first start, a retry, which fails for good, and the start after a replay."""
    starts: list[dict[bytes, Delivery]] = [{}, {}, {}]

    def handle(body: bytes, delivery: Delivery) -> None:
        starts[delivery.attempt - 1][body] = delivery
        raise ConnectionError if delivery.attempt == 1 else Permanent("as asked")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.immediate())
    drained(app)
    app.close()
    assert lab.dlq("orders").replay_all().count == count
    starts[2] = {delivery.body: delivery for delivery in _seen(lab)}
    return starts
