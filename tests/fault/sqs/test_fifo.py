"""A FIFO queue keeps the order of each group for what succeeds; what fails is sent again, and others do not wait for it."""

import json

from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery, Outgoing
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, drained

SOURCE = "orders.fifo"


def outgoing(*keyed: tuple[str, str | None]) -> list[Outgoing]:
    return [Outgoing(text, SOURCE, text.encode(), key) for text, key in keyed]


def test_messages_of_each_key_are_handled_in_order(lab):
    received: dict[str, list[int]] = {"a": [], "b": [], "c": []}

    def handle(number: int, delivery: Delivery) -> None:
        received[delivery.key].append(number)

    app = given.consumer(lab.app(), SOURCE, handle)
    for number in range(30):
        app.publish(SOURCE, number, key="abc"[number % 3])
    drained(app)
    assert received == {key: list(range(start, 30, 3)) for start, key in enumerate("abc")}


def test_without_a_key_everything_is_one_line(lab):
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)

    app = given.consumer(lab.app(prefetch=4), SOURCE, handle)
    app.publish_many(SOURCE, range(25))
    drained(app)
    assert received == list(range(25))


def test_equal_messages_are_two_messages(lab):
    broker = lab.broker(SOURCE)
    broker.publish(outgoing(("same", "a"), ("same", "a")))
    assert [delivery.body for delivery in broker.fetch(SOURCE, 10)] == [b"same", b"same"]


def test_a_message_that_fails_keeps_its_key_and_nobody_waits_for_it(lab):
    handled: list[tuple[int, str | None, int]] = []

    def handle(number: int, delivery: Delivery) -> None:
        if number == 0 and delivery.attempt < 3:
            raise ConnectionError("not now")
        handled.append((number, delivery.key, delivery.attempt))

    app = given.consumer(lab.app(prefetch=1), SOURCE, handle, backoff=Backoff.fixed(1))
    for number in range(3):
        app.publish(SOURCE, number, key="a")
    drained(app)
    assert handled == [(1, "a", 1), (2, "a", 1), (0, "a", 3)]


def test_a_retry_is_sent_again_in_the_same_group(lab):
    broker = lab.broker(SOURCE)
    broker.publish(outgoing(("first", "customer-7")))
    (delivery,) = broker.fetch(SOURCE, 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    broker.close()
    (message,) = lab.queue(SOURCE).received()
    assert message["Attributes"]["MessageGroupId"] == "customer-7"
    assert message["MessageId"] != delivery.receipt.envelope["MessageId"]
    assert json.loads(message["MessageAttributes"]["unpoison"]["StringValue"])["counters"] == {"attempts": 1}


def test_a_message_waits_in_a_queue_of_its_own_and_comes_back(lab):
    broker = lab.broker(SOURCE)
    broker.publish([Outgoing("late", SOURCE, b"late", "a", delay=1.0), Outgoing("now", SOURCE, b"now", "a")])
    depth = broker.depth(SOURCE)
    assert (depth.ready, depth.delayed, depth.empty) == (1, 1, False)
    seen: list[bytes] = []

    def both_came() -> bool:
        deliveries = broker.fetch(SOURCE, 10)
        seen.extend(delivery.body for delivery in deliveries)
        broker.settle(Settlement(gone=deliveries))
        return len(seen) == 2

    wait_until(both_came, lambda: f"Only {seen} came")
    assert seen == [b"now", b"late"]
    assert broker.depth(SOURCE).empty


def test_a_planned_stop_hands_back_in_place(lab):
    broker = lab.broker(SOURCE)
    broker.publish(outgoing(("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")))
    held = list(broker.fetch(SOURCE, 3))
    broker.settle(Settlement(gone=held[:1], kept=[Kept(each, each.counters) for each in held[1:]]))
    broker.close()
    other = lab.broker(SOURCE)
    assert [delivery.body for delivery in other.fetch(SOURCE, 10)] == [b"2", b"3", b"4"]


def test_a_letter_that_is_stored_twice_is_there_once(lab):
    broker = lab.broker(SOURCE)
    broker.publish(outgoing(("poison", "a")))
    (delivery,) = broker.fetch(SOURCE, 1)
    dead = [Dead(delivery, given.letter_of(delivery))]
    broker._store(dead)  # as if the answer had been lost
    broker.settle(Settlement(dead=dead))
    assert lab.queue("orders-dlq.fifo").attributes()["ApproximateNumberOfMessages"] == "1"
    assert [letter.message.key for letter in lab.dlq(SOURCE).letters()] == ["a"]


def test_letters_of_one_key_are_all_seen_and_sent_again(lab):
    app = given.consumer(lab.app(), SOURCE, _fail, max_attempts=1)
    for number in range(25):
        app.publish(SOURCE, number, key="a")
    drained(app)
    app.close()
    dlq = lab.dlq(SOURCE)
    assert sorted(int(letter.body) for letter in dlq.letters()) == list(range(25))
    assert dlq.replay_all().count == 25
    received: list[tuple[int, str | None]] = []

    def handle(number: int, delivery: Delivery) -> None:
        received.append((number, delivery.key))

    drained(given.consumer(lab.app(), SOURCE, handle))
    assert sorted(received) == [(number, "a") for number in range(25)]


def test_a_suspect_runs_alone_from_its_own_queue(lab):
    broker = lab.broker(SOURCE)
    broker.publish(outgoing(("killer", "a")))
    (delivery,) = broker.fetch(SOURCE, 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(vanished=2, alone=True))]))
    assert broker.has_suspect(SOURCE)
    suspect = broker.take_suspect(SOURCE, "here")
    assert (suspect.body, suspect.key, suspect.counters.losses) == (b"killer", "a", 0)
    broker.close()  # as if it had vanished
    other = lab.broker(SOURCE)
    again = other.take_suspect(SOURCE, "there")
    assert again.counters.losses == 1
    assert "started alone on here" in again.counters.history[-1].error
    other.settle(Settlement(gone=[again]))
    assert other.depth(SOURCE).empty


def test_start_up_says_that_retries_may_be_overtaken(lab):
    app = given.consumer(lab.app(), SOURCE, _fail)
    with Journal() as journal:
        drained(app)
    (told,) = journal.of("finding")
    assert "those behind a message which fails do not wait for it" in told


def test_a_standard_and_a_fifo_queue_of_one_name_have_nothing_in_common(lab):
    for source in ("orders", SOURCE):
        app = given.consumer(lab.app(), source, _fail, max_attempts=1)
        app.publish(source, 1)
        drained(app)
        app.close()
    assert (lab.dlq("orders").count(), lab.dlq(SOURCE).count()) == (1, 1)
    lab.dlq("orders").replay_all()
    assert [letter.state for letter in lab.dlq(SOURCE).letters(state=None)] == ["dead"]


def _fail(number: int) -> None:
    raise ConnectionError("never")
