"""Messages arrive, unchanged and in order, and the broker knows how many there are."""

import threading
import time

import pytest

from unpoison.errors import PayloadError
from unpoison.model.message import Outgoing
from unpoison.port.broker import Capability, Dead, Depth, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import PATIENCE
from unpoison.testing.running import Running, drained

BODIES = {
    "every byte there is": bytes(range(256)),
    "nothing": b"",
    "a mebibyte": bytes(range(256)) * 4096,
    "a NUL in the middle": b"a\x00b",
    "text": "grüße, 世界".encode(),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_arrives_bit_for_bit(lab: Lab, body: bytes) -> None:
    received: list[bytes] = []

    def handle(payload: bytes) -> None:
        received.append(payload)

    app = given.consumer(lab.app(), "bytes", handle)
    app.publish("bytes", body)
    drained(app)
    assert received == [body]


def test_id_key_and_headers_arrive_as_they_were_sent(lab: Lab) -> None:
    sent = Outgoing(
        "id with ' and \" and ü", "orders", b"{}", "ключ", {"trace": "a\nb", "empty": "", "ü": "世界", "X": "1", "x": "2"}
    )
    broker = lab.broker("orders")
    broker.publish([sent])
    (delivery,) = broker.fetch("orders", 10)
    assert (delivery.id, delivery.source, delivery.body, delivery.key) == (sent.id, "orders", b"{}", sent.key)
    assert dict(delivery.headers) == dict(sent.headers)
    assert (delivery.attempt, delivery.returned) == (1, False)


@trait(Trait.ORDERED)
def test_an_empty_key_and_no_key_are_different(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish([Outgoing("1", "orders", b"", ""), Outgoing("2", "orders", b"", None)])
    assert [delivery.key for delivery in broker.fetch("orders", 10)] == ["", None]


@trait(Trait.ORDERED)
def test_a_healthy_line_is_handled_in_the_order_it_was_published(lab: Lab) -> None:
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)

    app = given.consumer(lab.app(prefetch=7), "orders", handle)
    app.publish_many("orders", range(40))
    for number in range(40, 50):
        app.publish("orders", number)
    drained(app)
    assert received == list(range(50))


def test_a_fetch_takes_no_more_than_was_asked_for_and_nothing_twice(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 10))
    batches = [[delivery.body for delivery in broker.fetch("orders", 4)] for _ in range(4)]
    assert [len(batch) for batch in batches] == [4, 4, 2, 0]
    assert len({body for batch in batches for body in batch}) == 10


def test_a_fetch_of_nothing_takes_nothing(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    assert list(broker.fetch("orders", 0)) == []
    assert len(broker.fetch("orders", 1)) == 1


@trait(Trait.SEVERAL_CONSUMERS)
def test_two_connections_never_get_the_same_message(lab: Lab) -> None:
    one, other = lab.broker("orders"), lab.broker("orders")
    one.publish(given.messages("orders", 20))
    taken: list[bytes] = []

    def take_by_turns(rounds: int = 1) -> bool:
        for broker in (one, other) * rounds:
            taken.extend(delivery.body for delivery in broker.fetch("orders", 2))
        return len(taken) >= 20

    if lab.shares_by_turns:
        assert take_by_turns(rounds=5)
    else:
        wait_until(take_by_turns, lambda: f"Only {len(taken)} of 20 came")
    assert len(taken) == len(set(taken)) == 20
    assert not one.fetch("orders", 10)
    assert not other.fetch("orders", 10)


def test_a_source_has_only_its_own_messages(lab: Lab) -> None:
    similar = lab.similar_source
    broker = lab.broker("orders", similar)
    broker.publish([*given.messages("orders", 2), *given.messages(similar, 3, first=10)])
    assert {delivery.body for delivery in broker.fetch("orders", 10)} == {b"0", b"1"}
    assert {delivery.body for delivery in broker.fetch(similar, 10)} == {b"10", b"11", b"12"}


def test_what_was_settled_never_comes_back(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 10))
    deliveries = broker.fetch("orders", 10)
    broker.settle(Settlement(gone=[deliveries[n] for n in (7, 0, 3, 4)]))
    broker.settle(Settlement(gone=[deliveries[n] for n in (1, 2, 5, 6, 8, 9)]))
    broker.close()
    assert list(lab.broker("orders").fetch("orders", 10)) == []


@trait(Trait.ORDERED)
def test_only_the_unsettled_part_of_a_batch_comes_back(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 10))
    deliveries = broker.fetch("orders", 10)
    broker.settle(Settlement(gone=[deliveries[n] for n in (0, 1, 4, 9)]))
    broker.close()
    back = lab.broker("orders").fetch("orders", 10)
    assert {delivery.body for delivery in back} == {b"2", b"3", b"5", b"6", b"7", b"8"}


@trait(Trait.ORDERED)
def test_a_slow_message_does_not_hold_up_what_comes_after_it(lab: Lab) -> None:
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 101))
    (slow,) = broker.fetch("orders", 1)
    bodies: list[bytes] = []

    def all_others_came() -> bool:
        deliveries = broker.fetch("orders", 10)
        broker.settle(Settlement(gone=deliveries))
        bodies.extend(delivery.body for delivery in deliveries)
        return len(bodies) == 100

    wait_until(all_others_came, lambda: f"Only {len(bodies)} of 100 others came")
    assert bodies == [str(number).encode() for number in range(1, 101)]
    broker.settle(Settlement(gone=[slow]))
    broker.close()
    assert lab.broker("orders").depth("orders").empty


def test_a_batch_with_one_payload_that_cannot_be_sent_is_not_sent_at_all(lab: Lab) -> None:
    app = lab.app()
    with pytest.raises(PayloadError):
        app.publish_many("orders", [1, 2, float("nan")])
    assert lab.broker("orders").depth("orders").ready == 0


def test_the_depth_adds_up(lab: Lab) -> None:
    lab.needs(Capability.EXACT_DEPTH)
    broker, looking = lab.broker("orders", "others"), lab.broker("orders")
    assert looking.depth("orders") == Depth()
    broker.publish([*given.messages("orders", 10), *given.messages("orders", 2, delay=3600), *given.messages("others", 5)])
    assert looking.depth("orders") == Depth(ready=10, delayed=2)
    deliveries = broker.fetch("orders", 7)
    assert looking.depth("orders") == Depth(ready=3, delayed=2, leased=7)
    gone, retried, released, dead = deliveries[0], deliveries[3], deliveries[4], deliveries[6]
    broker.settle(
        Settlement(
            gone=[gone],
            kept=[Kept(retried, retried.counters, 3600.0), Kept(released, released.counters)],
            dead=[Dead(dead, given.letter_of(dead))],
        )
    )
    assert looking.depth("orders") == Depth(ready=4, delayed=3, leased=3, dead=1)
    assert not looking.depth("orders").empty
    broker.settle(Settlement(gone=[deliveries[n] for n in (1, 2, 5)]))
    assert looking.depth("orders") == Depth(ready=4, delayed=3, dead=1)
    assert looking.depth("others") == Depth(ready=5)


def test_the_depth_adds_up_while_messages_move(lab: Lab) -> None:
    lab.needs(Capability.EXACT_DEPTH)
    moving, looking = lab.broker("orders"), lab.broker("orders")
    moving.publish(given.messages("orders", 3))
    ended = threading.Event()

    def move() -> None:
        while not ended.is_set():
            held = moving.fetch("orders", 3)
            moving.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in held]))

    thread = threading.Thread(target=move)
    thread.start()
    try:
        depths = [looking.depth("orders") for _ in range(300)]
    finally:
        ended.set()
        thread.join()
    assert {depth.ready + depth.delayed + depth.leased for depth in depths} == {3}


def test_a_waiting_consumer_is_told_when_a_message_arrives(lab: Lab) -> None:
    rung = threading.Event()
    broker = lab.broker("orders", ring=rung.set)
    for number in range(3):
        assert list(broker.fetch("orders", 10)) == []
        lab.broker("orders").publish(given.messages("orders", 1, first=number))
        assert [delivery.body for delivery in given.fetched_when_rung(broker, "orders", rung)] == [str(number).encode()]


def test_a_waiting_consumer_is_told_when_a_delay_is_over(lab: Lab) -> None:
    rung = threading.Event()
    broker = lab.broker("orders", ring=rung.set)
    delay, published = 0.2, time.monotonic()
    lab.broker("orders").publish(given.messages("orders", 1, delay=delay))
    fetched = broker.fetch("orders", 10)
    assert not fetched or time.monotonic() - published >= delay, "it came too early"
    fetched = fetched or given.fetched_when_rung(broker, "orders", rung)
    assert [delivery.body for delivery in fetched] == [b"0"]


def test_a_message_published_to_an_idle_consumer_is_handled(lab: Lab) -> None:
    handled = threading.Event()

    def handle(payload: int) -> None:
        handled.set()

    app = given.consumer(lab.app(), "orders", handle)
    with Running(app):
        for number in range(3):
            app.publish("orders", number)
            assert handled.wait(PATIENCE)
            handled.clear()


def test_a_handler_can_publish(lab: Lab) -> None:
    received: list[int] = []
    complete = threading.Event()
    app = lab.app()

    def pass_on(number: int) -> None:
        app.publish("parcels", number + 100)

    def handle(number: int) -> None:
        received.append(number)
        if len(received) == 5:
            complete.set()

    given.consumer(app, "orders", pass_on)
    given.consumer(app, "parcels", handle)
    app.publish_many("orders", range(5))
    with Running(app):
        assert complete.wait(PATIENCE)
    assert sorted(received) == [100, 101, 102, 103, 104]
