"""What RabbitMQ itself or another program put into the DLQ is understood, and goes back to the queue that it came from."""

import json

import pika
import pytest
from kombu.connection import Connection
from kombu.entity import Queue

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from unpoison.errors import PayloadError
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def raw(raw):
    raw.confirm_delivery()
    return raw


def waiting(raw, queue):
    return raw.queue_declare(queue, passive=True).method.message_count


def dead_lettered_into_the_dlq(lab, raw, queue, **arguments):
    """A queue of another program, whose letters arrive in the DLQ of `orders`."""
    lab.broker("orders").close()
    to_the_dlq = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
    raw.queue_declare(queue, durable=True, arguments=to_the_dlq | arguments)


def publish(raw, queue, body, **fields):
    raw.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **fields))


def arrived(raw):
    wait_until(lambda: waiting(raw, "orders.dlq") == 1, lambda: "It did not arrive in the DLQ")


def taken(raw, queue):
    method, fields, body = raw.basic_get(queue, auto_ack=True)
    assert method is not None, f"{queue} is empty"
    return body, fields


def test_a_letter_of_another_queue_goes_back_there_as_it_was(lab, raw):
    dead_lettered_into_the_dlq(lab, raw, "mail")
    publish(raw, "mail", b"\xff", headers={"trace": "abc"}, content_type="text/odd", message_id="m1")
    raw.basic_nack(raw.basic_get("mail")[0].delivery_tag, requeue=False)
    arrived(raw)
    dlq = lab.dlq("orders")
    (letter,) = dlq.peek()
    assert letter.rule == "rejected: RabbitMQ dead-lettered it from queue 'mail'"
    assert (letter.body, letter.attempts, letter.message.headers) == (b"\xff", 1, {"trace": "abc"})
    assert letter.original == {
        "source": "mail",
        "exchange": "",
        "routing_key": "mail",
        "queue": "mail",
        "reason": "rejected",
        "count": "1",
    }
    assert letter.last_failed_at > 1_700_000_000
    assert dlq.replay_one()
    body, fields = taken(raw, "mail")
    assert (body, fields.headers["trace"], fields.content_type, fields.message_id) == (b"\xff", "abc", "text/odd", "m1")
    assert "x-death" not in fields.headers
    assert (waiting(raw, "orders"), dlq.count(), [each.state for each in dlq.letters(state=None)]) == (0, 0, ["replayed"])


def test_a_message_that_expired_in_a_queue_for_delays_goes_back_to_the_queue_that_it_was_rejected_in(lab, raw):
    dead_lettered_into_the_dlq(lab, raw, "mail.wait", **{"x-message-ttl": 1})
    to_the_delay = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mail.wait"}
    raw.queue_declare("mail", durable=True, arguments=to_the_delay)
    publish(raw, "mail", b"1")
    raw.basic_reject(raw.basic_get("mail")[0].delivery_tag, requeue=False)
    arrived(raw)
    (letter,) = lab.dlq("orders").peek()
    assert (letter.original["queue"], letter.original["first_queue"], letter.error_type) == ("mail", "mail", "rabbitmq.rejected")
    assert letter.original["deaths"] == "mail.wait (expired), mail (rejected)"
    lab.dlq("orders").replay_one()
    assert taken(raw, "mail")[0] == b"1"


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [("maxlen", {"x-max-length": 1}), ("delivery_limit", {"x-queue-type": "quorum", "x-delivery-limit": 1})],
)
def test_what_a_queue_itself_gave_up_says_why(lab, raw, reason, arguments):
    dead_lettered_into_the_dlq(lab, raw, "mail", **arguments)
    publish(raw, "mail", b"first")
    if reason == "maxlen":
        publish(raw, "mail", b"second")
    else:
        for _ in range(2):
            wait_until(lambda: waiting(raw, "mail") == 1, lambda: "It did not come back")
            raw.basic_nack(raw.basic_get("mail")[0].delivery_tag, requeue=True)
    arrived(raw)
    (letter,) = lab.dlq("orders").peek()
    assert (letter.error_type, letter.body, letter.original["queue"]) == (f"rabbitmq.{reason}", b"first", "mail")


def test_the_message_inside_of_an_envelope_is_shown_replayed_and_discarded(lab, raw):
    dead_lettered_into_the_dlq(lab, raw, "mail")
    for value in ({"id": 7, "total": 1.1}, "two"):
        publish(raw, "orders.dlq", json.dumps(ENVELOPE | {"original_topic": "mail", "original_value": value}).encode())
    dlq = lab.dlq("orders")
    wait_until(lambda: dlq.count() == 2, lambda: "They did not arrive")
    first, second = dlq.peek()
    assert (first.body, first.message.key, first.error, first.original["source"]) == (BODY, "customer-7", "total is odd", "mail")
    dlq.replay_one(first.id)
    assert taken(raw, "mail")[0] == BODY
    dlq.discard(second.id)
    assert {(each.state, each.body, each.error) for each in dlq.letters(state=None)} == {
        ("replayed", BODY, "total is odd"),
        ("discarded", b"two", "total is odd"),
    }
    assert waiting(raw, "orders") == 0


def test_an_envelope_from_the_source_itself_starts_there_as_a_replay(lab, raw):
    lab.broker("orders").close()
    publish(raw, "orders.dlq", json.dumps(ENVELOPE).encode())
    arrived(raw)
    lab.dlq("orders").replay_one()
    broker, found = lab.broker("orders"), []
    wait_until(lambda: found.extend(broker.fetch("orders", 10)) or found, lambda: "It did not come")
    (delivery,) = found
    assert (delivery.body, delivery.key, delivery.counters.replays) == (BODY, "customer-7", 1)


def test_a_letter_from_a_queue_that_is_gone_is_not_sent_anywhere(lab, raw):
    lab.broker("orders").close()
    for topic in ("orders", "closed"):
        publish(raw, "orders.dlq", json.dumps(ENVELOPE | {"original_topic": topic}).encode())
    dlq = lab.dlq("orders")
    wait_until(lambda: dlq.count() == 2, lambda: "They did not arrive")
    with pytest.raises(PayloadError, match="came from queue 'closed', which does not exist"):
        dlq.replay_one(dlq.peek()[1].id)
    assert (dlq.count(), waiting(raw, "orders")) == (2, 0)


def test_a_rejected_task_of_celery_is_told_and_goes_back_as_celery_wrote_it(lab, raw):
    dead_lettered_into_the_dlq(lab, raw, "celery")
    body = json.dumps([[7], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
    headers = {"lang": "py", "task": "shop.charge", "id": "5f0c", "root_id": "5f0c", "retries": 2, "argsrepr": "(7,)"}
    publish(raw, "celery", body, headers=headers, content_type="application/json", correlation_id="5f0c")
    raw.basic_reject(raw.basic_get("celery")[0].delivery_tag, requeue=False)
    arrived(raw)
    (letter,) = lab.dlq("orders").peek()
    facts = {"task": "shop.charge", "task_id": "5f0c", "args": "[7]", "kwargs": "{}", "retries": "2", "queue": "celery"}
    assert letter.original.items() >= facts.items()
    assert (letter.attempts, letter.body) == (3, body)
    lab.dlq("orders").replay_one()
    sent, fields = taken(raw, "celery")
    assert (sent, fields.content_type, fields.correlation_id) == (body, "application/json", "5f0c")
    assert fields.headers.items() >= headers.items()


def test_a_task_in_json_becomes_a_message_that_a_worker_of_celery_takes(lab, raw):
    dead_lettered_into_the_dlq(lab, raw, "celery")
    task = {"task_name": "shop.charge", "task_id": "5f0c", "args": [7], "kwargs": {}, "queue": "celery"}
    publish(raw, "orders.dlq", json.dumps(task | {"error": "KeyError: 'id'", "failed_at": 1_785_000_000}).encode())
    arrived(raw)
    lab.dlq("orders").replay_one()
    with Connection(lab.url.partition("?")[0]) as connection:
        message = Queue("celery", channel=connection.channel()).get()
        assert message.payload[:2] == [[7], {}]
        assert (message.headers["task"], message.headers["id"]) == ("shop.charge", "5f0c")
        message.ack()
