"""What a handler sees beside the payload: one rule for texts, and native facts that arrive as they are wherever it runs."""

import asyncio

import pytest

from unpoison import App, Delivery, Native
from unpoison.brokers.memory import MemoryBroker
from unpoison.brokers.nats import envelope as nats
from unpoison.brokers.rabbitmq import envelope as rabbitmq
from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.model.message import Counters, Outgoing, as_text, text_headers
from unpoison.port.reading import unreadable, with_native
from unpoison.testing import given
from unpoison.testing.running import drained
from unpoison.worker import wire


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"plain", "plain"),
        ("grüße".encode(), "grüße"),
        (b"a\xff\x00", "a\\xff\x00"),
        ("text", "text"),
        ("half \ud800", "half \\ud800"),
        (bytearray(b"\xfe"), "\\xfe"),
        (None, ""),
        (True, "true"),
        (5, "5"),
        (2**63, "9223372036854775808"),
        (1.5, "1.5"),
        ([b"\xff", 1, None], '["\\\\xff", 1, null]'),
        ({"ü": [True]}, '{"ü": [true]}'),
    ],
)
def test_one_rule_makes_a_text_of_any_value(value, text):
    assert as_text(value) == text
    text.encode()  # it can be stored and printed


def test_of_several_headers_with_one_name_the_last_counts():
    assert text_headers([("a", b"1"), ("b", 2), ("a", None)]) == {"a": "", "b": "2"}


NATIVE = Native(
    b"\xff",
    (("a", b"\xff"), ("a", 5), ("b", None), ("c", [1, b"x"]), ("d", {"e": True})),
    {"offset": 2**63, "at": 1.5, "no": None},
)


def test_a_native_comes_out_of_the_wire_as_it_went_in():
    sent = Delivery(0, "orders", "1", b"{}", "k", {"a": "b"}, Counters(attempts=1), True, NATIVE)
    here, there = wire.pair()
    with here, there:
        wire.send(here, wire.Run(0, 7, [], [sent]))
        received, _ = wire.receive(there, wire.to_worker)
    assert received.deliveries == [sent]
    assert (received.deliveries[0].native, received.deliveries[0].is_tombstone) == (NATIVE, True)


class Telling:
    """A broker that tells more than its messages do."""

    def __init__(self, broker, tell):
        self._broker, self.native = broker, tell

    def __getattr__(self, name):
        return getattr(self._broker, name)


def whole(delivery):
    return NATIVE


def broken(delivery):
    raise ValueError("a header that the adapter does not understand")


def seen_by_handler(tell):
    """What a handler gets where the broker tells this."""
    app, seen = App(f"memory://native-{tell.__name__}"), []
    app.publish("orders", b"1", key="k", headers={"a": "ü"})
    given.consumer(app, "orders", sync(seen))
    given.consumed(app, "orders", Telling(app._broker(), tell))
    app.close()
    return seen


def sync(seen):
    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery.native)

    return handle


def asynchronous(seen):
    async def handle(body: bytes, delivery: Delivery) -> None:
        await asyncio.sleep(0)
        seen.append(delivery.native)

    return handle


@pytest.mark.parametrize("isolation", ["inline", "thread"])
def test_a_handler_in_this_process_gets_what_the_broker_tells(isolation):
    app, seen = App(f"memory://native-{isolation}"), []
    app.publish("orders", b"1", key="k", headers={"a": "ü"})
    drained(given.consumer(app, "orders", sync(seen), isolation=isolation))
    assert seen == [Native(b"k", (("a", "ü".encode()),))]


def test_an_async_handler_gets_what_the_broker_tells():
    app, seen = App("memory://native-async"), []
    app.publish("orders", b"1", key="k")
    drained(given.consumer(app, "orders", asynchronous(seen), isolation="thread"))
    assert seen == [Native(b"k")]


def test_what_the_adapter_tells_is_what_the_handler_gets():
    assert seen_by_handler(whole) == [NATIVE]


def test_a_native_that_cannot_be_made_is_made_of_what_was_delivered():
    assert seen_by_handler(broken) == [Native(b"k", (("a", "ü".encode()),))]


def test_one_that_runs_alone_has_its_native_too():
    app, seen = App("memory://native-alone"), []
    store = MemoryBroker(app.settings.url).store
    with store.changed:
        store.put(Delivery(0, "orders", "1", b"1", "k", counters=Counters(vanished=2, alone=True)), None)
    drained(given.consumer(app, "orders", sync(seen)))
    assert seen == [Native(b"k")]


def test_one_that_runs_alone_gets_its_key_like_the_others():
    app, seen = App("memory://native-alone-key"), []
    store = MemoryBroker(app.settings.url).store
    with store.changed:
        alone = Counters(vanished=2, alone=True)
        store.put(Delivery(0, "orders", "1", b"1", headers={"tenant": "ada"}, counters=alone), None)

    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery.key)

    drained(given.consumer(app, "orders", handle, key_from="header:tenant"))
    assert seen == ["ada"]


def test_a_message_that_cannot_be_read_stays_one():
    one = unreadable(0, "orders", "1", b"", {}, ValueError("odd"))
    assert with_native(one, broken) is one


def test_a_key_that_is_taken_from_a_header_is_not_the_brokers():
    app, seen = App("memory://native-key-from"), []
    app.publish("orders", b"1", headers={"tenant": "ada"})

    def handle(body: bytes, delivery: Delivery) -> None:
        seen.append((delivery.key, delivery.native.key))

    drained(given.consumer(app, "orders", handle, key_from="header:tenant"))
    assert seen == [("ada", None)]


def test_what_unpoison_publishes_without_key_and_headers_takes_the_short_way():
    """A short way that nothing takes looks like one that works: everything arrives, and costs several times as much."""
    bare, with_key = Outgoing("id-1", "orders", b"1"), Outgoing("id-2", "orders", b"2", "k")
    published = rabbitmq.published(bare)
    assert rabbitmq.is_plain(published)
    assert not rabbitmq.is_plain(rabbitmq.published(with_key))
    assert not rabbitmq.is_plain(rabbitmq.published(bare, [properties.header(b"x", "1")]))
    assert rabbitmq.plain("orders", Arrived(1, False, published, b"1", b"\x00\x06orders"), None).id == "id-1"
    assert nats.is_plain(nats.published(bare))
    assert not nats.is_plain(nats.published(with_key))
