"""What SQS itself or another program put into the DLQ is understood, and goes back to the queue that it came from."""

import base64
import json

import pytest

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from unpoison.errors import PayloadError
from unpoison.testing.isolation.diary import wait_until

TRACE = {"trace": {"DataType": "String", "StringValue": "abc"}}


def redriven_into_the_dlq(lab, name):
    """A queue of another program, of which SQS itself moves messages to the DLQ of `orders`."""
    lab.broker("orders").close()
    policy = {"deadLetterTargetArn": lab.queue("orders-dlq").attributes()["QueueArn"], "maxReceiveCount": "1"}
    queue = lab.queue(name)
    queue.create(RedrivePolicy=json.dumps(policy), VisibilityTimeout="0")
    return queue


def waiting(queue):
    return int(queue.attributes()["ApproximateNumberOfMessages"])


def given_up(lab, queue, body, **more):
    queue.send(body, **more)
    wait_until(lambda: queue.received(VisibilityTimeout=0), lambda: "It was not received")
    wait_until(lambda: not queue.received() and waiting(lab.queue("orders-dlq")), lambda: "SQS did not move it")


def test_what_sqs_moved_from_another_queue_tells_so_and_goes_back_there(lab):
    mail = redriven_into_the_dlq(lab, "mail")
    given_up(lab, mail, "hello", MessageAttributes=TRACE)
    dlq = lab.dlq("orders")
    (letter,) = dlq.peek()
    assert (letter.body, letter.message.headers, letter.error_type) == (b"hello", {"trace": "abc"}, "sqs.Redriven")
    name = lab.queue("mail").name
    assert letter.original["queue"] == name
    assert letter.original["receives"] >= 2
    assert f"SQS itself gave it up, in queue {name!r}; it was received" in letter.rule
    assert dlq.replay_one()
    (message,) = mail.received()
    assert (message["Body"], message["MessageAttributes"]["trace"]["StringValue"]) == ("hello", "abc")
    assert (dlq.count(), [each.state for each in dlq.letters(state=None)]) == (0, ["replayed"])
    assert not lab.broker("orders").fetch("orders", 10)


def test_the_message_inside_of_an_envelope_is_shown_replayed_and_discarded(lab):
    lab.broker("orders").close()
    for value in ({"id": 7, "total": 1.1}, "two"):
        lab.queue("orders-dlq").send(json.dumps(ENVELOPE | {"original_value": value}))
    dlq = lab.dlq("orders")
    second, first = sorted(dlq.peek(), key=lambda letter: letter.body == BODY)
    assert (first.body, first.message.key, first.error, first.classification) == (BODY, "customer-7", "total is odd", "permanent")
    dlq.replay_one(first.id)
    broker, found = lab.broker("orders"), []
    wait_until(lambda: found.extend(broker.fetch("orders", 10)) or found, lambda: "It did not come")
    assert [(each.body, each.key, each.counters.replays) for each in found] == [(BODY, "customer-7", 1)]
    dlq.discard(second.id)
    assert {(each.state, each.body) for each in dlq.letters(state=None)} == {("replayed", BODY), ("discarded", b"two")}


@pytest.mark.parametrize("name", ["mail", "mail.fifo"])
def test_an_envelope_from_another_queue_is_sent_there_without_the_envelope(lab, name):
    lab.broker("orders").close()
    mail = lab.queue(name)
    mail.create(**({"FifoQueue": "true"} if name.endswith(".fifo") else {}))
    body = bytes(range(256))
    told = {"original_value": base64.b64encode(body).decode(), "encoding": "base64", "original_topic": name}
    lab.queue("orders-dlq").send(json.dumps(ENVELOPE | told))
    dlq = lab.dlq("orders")
    assert dlq.peek()[0].body == body
    dlq.replay_one()
    (message,) = mail.received()
    assert base64.b64decode(message["Body"]) == body, "SQS takes no bytes, so they travel as base64"
    assert message["Attributes"].get("MessageGroupId", "customer-7") == "customer-7"


def test_a_letter_from_a_queue_that_is_gone_is_not_sent_anywhere(lab):
    lab.broker("orders").close()
    lab.queue("orders-dlq").send(json.dumps(ENVELOPE | {"original_topic": "closed"}))
    dlq = lab.dlq("orders")
    with pytest.raises(PayloadError, match="came from queue 'closed', which does not exist"):
        dlq.replay_one()
    assert dlq.count() == 1


def test_a_task_of_celery_is_told(lab):
    lab.broker("orders").close()
    body = base64.b64encode(json.dumps([[7], {}, {}]).encode()).decode()
    headers = {"lang": "py", "task": "shop.charge", "id": "5f0c", "retries": 0}
    message = {"body": body, "content-type": "application/json", "headers": headers, "properties": {"body_encoding": "base64"}}
    text = base64.b64encode(json.dumps(message).encode()).decode()
    lab.queue("orders-dlq").send(text)
    (letter,) = lab.dlq("orders").peek()
    assert letter.original.items() >= {"task": "shop.charge", "task_id": "5f0c", "args": "[7]", "kwargs": "{}"}.items()
    assert letter.body == text.encode()
