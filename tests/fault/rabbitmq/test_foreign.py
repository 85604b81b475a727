"""Letters that a shovel moved back start anew; what others wrote is a fact and no counter."""

import pika
import pytest

from unpoison.errors import Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, drained


@pytest.fixture
def raw(raw):
    raw.confirm_delivery()
    return raw


def shovel(rabbitmq, lab, raw, source, target):
    """Move all messages, as the button of the management page does."""
    uri, name = f"amqp:///{lab.vhost}", "Move"
    ends = {"src-uri": uri, "src-queue": source, "dest-uri": uri, "dest-queue": target}
    value = {"src-protocol": "amqp091", "dest-protocol": "amqp091", "src-delete-after": "queue-length", **ends}
    expected = sum(raw.queue_declare(queue, passive=True).method.message_count for queue in (source, target))
    rabbitmq.http("PUT", f"/api/parameters/shovel/{lab.vhost}/{name}", {"value": value})
    wait_until(
        lambda: raw.queue_declare(target, passive=True).method.message_count == expected, lambda: "The shovel moved nothing"
    )


def test_a_letter_that_a_shovel_moved_back_starts_anew_with_its_history(lab, raw, rabbitmq):
    starts: list[tuple[int, bool]] = []

    def handle(_: int, delivery: Delivery) -> None:
        starts.append((delivery.attempt, any(name.startswith("x-unpoison") for name in delivery.headers)))
        raise ConnectionError(f"start {len(starts)}")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.fixed(0))
    app.publish("orders", 1, headers={"tenant": "a"}, key="k")
    drained(app)
    (first,) = lab.dlq("orders").letters()
    shovel(rabbitmq, lab, raw, "orders.dlq", "orders")
    with Journal() as journal:
        assert drained(app)["orders"].dead == 1
        assert journal.of("moved-back") == [
            "Source 'orders': another tool moved 1 dead letter back from the DLQ. Started again as replays, with their history."
        ]
    assert starts == [(1, False), (2, False), (1, False), (2, False)]
    (again,) = lab.dlq("orders").letters()
    assert again.id != first.id
    assert (first.replays, again.replays, again.attempts) == (0, 1, 2)
    assert [past.error for past in again.history] == [f"ConnectionError: start {number}" for number in (1, 2, 3, 4)]
    assert again.message == first.message


@pytest.mark.parametrize("state", ["dead", "discarded"])
def test_what_becomes_of_a_letter_moved_back_goes_by_its_own_end_and_not_by_the_old_one(lab, raw, rabbitmq, state):
    """Retried, replayed by us, or dead-lettered by RabbitMQ itself: the marks of the old letter do not come along."""
    fails = [Permanent("poison"), Permanent("poison"), ConnectionError("not yet"), None]

    def handle(_: int) -> None:
        if error := fails.pop(0):
            raise error

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0.1))
    app.publish("orders", 1)
    drained(app)
    letters = lab.dlq("orders")
    if state == "discarded":
        (letter,) = letters.letters()
        letters.discard(letter.id)
    shovel(rabbitmq, lab, raw, "orders.dlq" if state == "dead" else "orders.dlq.history", "orders")
    drained(app)
    assert [letter.replays for letter in letters.letters()] == [1]
    letters.replay_all()
    tally = drained(app)["orders"]
    assert (tally.retried, tally.done, letters.count()) == (1, 1, 0)
    assert fails == []


def test_a_letter_moved_back_that_expires_is_a_new_letter(lab, raw, rabbitmq):
    def handle(_: int) -> None:
        raise Permanent("poison")

    app = given.consumer(lab.app(), "orders", handle)
    app.publish("orders", 1)
    drained(app)
    (first,) = lab.dlq("orders").letters()
    policy = {"pattern": "^orders$", "definition": {"message-ttl": 1}, "apply-to": "queues"}
    rabbitmq.http("PUT", f"/api/policies/{lab.vhost}/expire", policy)
    rabbitmq.http(
        "PUT",
        f"/api/parameters/shovel/{lab.vhost}/Move",
        {
            "value": {
                "src-uri": f"amqp:///{lab.vhost}",
                "src-queue": "orders.dlq",
                "dest-uri": f"amqp:///{lab.vhost}",
                "dest-queue": "orders",
                "src-delete-after": 1,
            }
        },
    )
    letters = lab.dlq("orders")
    wait_until(
        lambda: [letter.error_type for letter in letters.letters()] == ["rabbitmq.expired"],
        lambda: f"{letters.letters()} is not one letter that expired",
    )
    (again,) = letters.letters()
    assert again.id != first.id


def test_attempts_that_somebody_else_counted_are_a_header_of_the_sender(lab, raw):
    lab.broker("orders")
    headers = {"x-delivery-attempts": 99, "x-unpoison-losses": 50, "x-unpoison-alone": True}
    for number in (1, 2):
        raw.basic_publish("", "orders", str(number).encode(), pika.BasicProperties(headers=headers, message_id=f"m{number}"))
    seen: list[tuple[int, int, str]] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append((number, delivery.attempt, delivery.headers["x-delivery-attempts"]))
        assert dict(delivery.native.headers)["x-delivery-attempts"] == 99
        if delivery.attempt == 1:
            raise ConnectionError("not yet")
        raise Permanent("poison")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0))
    with Journal() as journal:
        drained(app)
        (told,) = journal.of("foreign-attempts")
    assert "'m1' came with a header x-delivery-attempts: 99" in told
    assert sorted(seen) == [(number, attempt, "99") for number in (1, 2) for attempt in (1, 2)]
    letters = lab.dlq("orders").letters()
    assert [(letter.attempts, letter.message.headers) for letter in letters] == [(2, {"x-delivery-attempts": "99"})] * 2


@pytest.mark.parametrize("fails", [0, 1])
def test_an_expiration_is_a_fact_of_the_letter_and_no_copy_expires(lab, raw, fails):
    lab.broker("orders")
    raw.exchange_declare("shop", "direct", durable=True)
    raw.queue_bind("orders", "shop", "new")
    raw.basic_publish("shop", "new", b"1", pika.BasicProperties(expiration="60000"), mandatory=True)

    def handle(_: int, delivery: Delivery) -> None:
        raise ConnectionError("not yet") if delivery.attempt <= fails else Permanent("poison")

    app = given.consumer(lab.app(), "orders", handle, backoff=Backoff.fixed(0.1))
    drained(app)
    letters = lab.dlq("orders")
    (letter,) = letters.letters()
    assert letter.original == {"source": "orders", "exchange": "shop", "routing_key": "new", "expiration": "60000"}
    letters.replay_all()
    _, properties, _ = raw.basic_get("orders", auto_ack=True)
    assert properties.expiration is None
    assert properties.headers["x-unpoison-expiration"] == "60000"


def test_what_expired_by_its_own_expiration_says_so(lab, raw):
    lab.broker("orders")
    raw.basic_publish("", "orders", b"1", pika.BasicProperties(expiration="1"))
    letters = lab.dlq("orders")
    wait_until(letters.count, lambda: "It did not expire")
    (letter,) = letters.letters()
    assert letter.original["expiration"] == "1"
