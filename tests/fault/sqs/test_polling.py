"""How many requests are under way at once, and what does a message look like to others?"""

import json
import random
import threading

import pytest

from tests.contract.sqs_lab import SQSLab
from unpoison.errors import PayloadError
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given

PATIENCE = 30
TOGETHER = 4


@pytest.fixture
def lab(proxied_lab):
    return proxied_lab


@pytest.mark.parametrize("operation", ["ReceiveMessage", "DeleteMessageBatch"])
def test_several_requests_are_under_way_at_once(lab, operation):
    """None of the first ones is answered before the others have come too."""
    broker, gate = lab.broker("orders"), threading.Barrier(TOGETHER)
    broker.publish(given.messages("orders", 40))
    came = threading.Semaphore(TOGETHER)

    def answer_together(name: str, queue: str) -> bool:
        if name == operation and queue.endswith("-orders") and came.acquire(blocking=False):
            gate.wait(PATIENCE)
        return False

    lab.proxy.denies = answer_together
    deliveries = broker.fetch("orders", 40)
    broker.settle(Settlement(gone=deliveries))
    assert len(deliveries) == 40
    assert not gate.broken


@pytest.mark.parametrize("source", ["orders", "orders.fifo"])
def test_all_that_is_ours_is_json_in_one_attribute(lab, source):
    broker, queue = lab.broker(source), lab.queue(source)
    broker.publish([Outgoing("id-1", source, b"{}", "customer-7", {"x": "ü"})])
    (delivery,) = broker.fetch(source, 1)
    assert _told(delivery.receipt.envelope) == {"id": "id-1", "key": "customer-7", "headers": {"x": "ü"}}
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    broker.close()
    (message,) = queue.received()
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("{}", "customer-7")
    assert _told(message) == {
        "id": "id-1",
        "key": "customer-7",
        "headers": {"x": "ü"},
        "stamp": delivery.receipt.envelope["MessageId"],
        "counters": {"attempts": 1},
    }


def _told(message: dict) -> dict:
    (name,) = message["MessageAttributes"]
    assert name == "unpoison"
    return json.loads(message["MessageAttributes"][name]["StringValue"])


HOSTILE = {
    "deep": '{"counters":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}",
    "deep where nobody looks": '{"other":' + "[" * 100_000 + "]" * 100_000 + "}",
    "attributes that are none": '{"attributes":{"x":5}}',
    "half a character": '{"id":"\\ud800"}',
    "another type": '{"id":5}',
    "no JSON": "{",
    "numbers below nought": '{"counters":{"attempts":-5},"wait":-1e308}',
    "a letter that is none": '{"letter":{"error":{"a":1}},"state":"dead","letter_id":"x"}',
}


def test_attributes_of_our_name_with_anything_in_them_hold_up_nobody(lab):
    handled: list[str] = []

    def handle(body: bytes) -> None:
        handled.append(body.decode())
        raise ValueError("poison")

    app, queue = given.consumer(lab.app(), "orders", handle), lab.queue("orders")
    app.publish("orders", b"before")
    for name, text in HOSTILE.items():
        queue.send(name, MessageAttributes={"unpoison": {"DataType": "String", "StringValue": text}})
    app.publish("orders", b"after")
    given.consumed(app, "orders", lab.broker("orders"))
    wanted = sorted(["before", *HOSTILE, "after"])
    assert sorted(handled) == wanted
    assert sorted(letter.body.decode() for letter in lab.dlq("orders").letters()) == wanted


def test_a_message_that_is_too_large_for_its_own_queue_is_refused_with_that_limit(tmp_path, moto):
    with SQSLab(moto, tmp_path) as lab:
        lab.queue("orders").create(MaximumMessageSize="65536")
        with pytest.raises(PayloadError, match="this queue takes 65,536 at most"):
            lab.app().publish("orders", random.Random(7).randbytes(60_000))
