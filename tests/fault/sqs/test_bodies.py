"""What SQS refuses travels all the same, bit for bit; what is too large is refused before it is sent."""

import base64
import json
import random
import zlib

import pytest

from unpoison.brokers.sqs import source
from unpoison.brokers.sqs.envelope import MOST_BYTES
from unpoison.errors import PayloadError, PublishFailed, Refusal
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Dead, Depth, Kept, Settlement
from unpoison.testing import given

REFUSED = {
    "NUL": b"a\x00b",
    "a control character": b"\x01",
    "escape": b"\x1b[31mred",
    "no character": "\ufffe".encode(),
    "half a character": b"\xed\xa0\x80",
    "no text": bytes(range(256)),
    "nothing": b"",
}
TAKEN = {
    "what stands for nothing": b"-",
    "base64": b"aGVsbG8=",
    "line ends": b"a\r\nb\tc\n",
    "emoji": "😀 ü 世界".encode(),
    "spaces": b"  ",
}

MOST_AT_ONCE = 1024 * 1024
LARGE = MOST_AT_ONCE // 4


@pytest.mark.parametrize("body", [*REFUSED.values(), *TAKEN.values()], ids=[*REFUSED, *TAKEN])
def test_a_body_survives_publish_retry_dead_letter_and_replay(lab, body):
    broker = lab.broker("orders")
    broker.publish([Outgoing("1", "orders", body)])
    (delivery,) = broker.fetch("orders", 10)
    assert delivery.body == body
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    (delivery,) = broker.fetch("orders", 10)
    assert delivery.body == body
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    broker.close()  # or what is sent again may come to it
    (letter,) = lab.dlq("orders").peek()
    assert letter.body == body
    lab.dlq("orders").replay_one()
    assert [delivery.body for delivery in lab.broker("orders").fetch("orders", 10)] == [body]


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_who_reads_without_unpoison_is_told_how_a_body_is_encoded(lab, body):
    lab.broker("orders").publish([Outgoing("1", "orders", body)])
    (message,) = lab.queue("orders").received()
    told = json.loads(message["MessageAttributes"]["unpoison"]["StringValue"])["encoding"]
    assert told == ("base64" if body else "empty")


def test_what_somebody_else_claims_to_be_encoded_and_is_not_arrives_as_it_is(lab):
    broker = lab.broker("orders")
    claims = {"unpoison": {"DataType": "String", "StringValue": '{"encoding":"base64"}'}}
    lab.queue("orders").send("no base64 at all!", MessageAttributes=claims)
    assert [delivery.body for delivery in broker.fetch("orders", 10)] == [b"no base64 at all!"]


def test_a_message_that_is_too_large_is_refused_with_the_limit(lab):
    noise = random.Random(7).randbytes(800_000)  # as base64 it is more than a mebibyte, and it cannot be compressed
    app = lab.app()
    with pytest.raises(PayloadError, match="1,048,576"):
        app.publish("orders", noise)
    assert lab.broker("orders").depth("orders").empty
    with pytest.raises(PublishFailed, match="1,048,576") as caught:
        app.publish_many("orders", [b"small", noise])
    assert [each.position for each in caught.value.stored] == [0]
    assert [(each.position, each.refusal) for each in caught.value.refused] == [(1, Refusal.TOO_LARGE)]


def test_a_large_message_that_can_be_compressed_is_sent(lab):
    body = json.dumps([{"id": number, "total": 9.99} for number in range(100_000)]).encode()
    assert len(body) > 2 * 1_048_576
    lab.app().publish("orders", body)
    assert [delivery.body for delivery in lab.broker("orders").fetch("orders", 1)] == [body]


def test_messages_that_fit_alone_and_not_together_go_in_several_requests(lab):
    bodies = [bytes([65 + number]) * 400_000 for number in range(5)]
    lab.app().publish_many("orders", bodies)
    broker = lab.broker("orders")
    assert sorted(delivery.body for _ in range(5) for delivery in broker.fetch("orders", 1)) == bodies


def test_a_letter_of_a_message_as_large_as_can_be_tells_less_and_is_stored(lab):
    broker = lab.broker("orders")
    text = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", k=1_048_000))
    lab.queue("orders").send(text)
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    broker.close()  # or what is sent again may come to it
    (letter,) = lab.dlq("orders").peek()
    assert letter.body == text.encode()


def test_attributes_of_other_programs_survive_retry_dead_letter_and_replay(lab):
    broker = lab.broker("orders")
    theirs = {
        "trace": {"DataType": "String", "StringValue": "abc"},
        "count": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    lab.queue("orders").send("hello", MessageAttributes=theirs)
    (delivery,) = broker.fetch("orders", 10)
    assert dict(delivery.headers) == {"trace": "abc", "count": "7", "raw": "\x00\\xff"}
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1))]))
    (delivery,) = broker.fetch("orders", 10)
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    broker.close()
    lab.dlq("orders").replay_one()
    (delivery,) = lab.broker("orders").fetch("orders", 10)
    sent = {name: _as_sent(value) for name, value in delivery.receipt.envelope["MessageAttributes"].items() if name != "unpoison"}
    assert sent == theirs


def test_of_ten_attributes_of_other_programs_nine_stay_as_they_are_and_the_last_is_readable_inside_of_ours(lab):
    broker = lab.broker("orders")
    theirs = {f"name{number}": {"DataType": "String", "StringValue": str(number)} for number in range(10)}
    seen_by_handlers = {name: value["StringValue"] for name, value in theirs.items()}
    lab.queue("orders").send("hello", MessageAttributes=theirs)
    for attempts in (1, 2):
        (delivery,) = broker.fetch("orders", 10)
        assert dict(delivery.headers) == seen_by_handlers
        broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=attempts))]))
    (delivery,) = broker.fetch("orders", 10)
    assert delivery.counters.attempts == 2
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    broker.close()
    (letter,) = lab.dlq("orders").letters()
    assert dict(letter.message.headers) == seen_by_handlers
    (message,) = lab.queue("orders-dlq").received()
    attributes = {name: _as_sent(value) for name, value in message["MessageAttributes"].items()}
    told = json.loads(attributes.pop("unpoison")["StringValue"])
    assert attributes == {name: value for name, value in theirs.items() if name != "name9"}
    assert told["attributes"] == {"name9": theirs["name9"]}


def test_the_group_of_a_fair_queue_stays_on_the_dead_letter(lab):
    broker = lab.broker("orders")
    lab.queue("orders").send("hello", MessageGroupId="tenant-7")
    (delivery,) = broker.fetch("orders", 10)
    assert delivery.key == "tenant-7"
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    (message,) = lab.queue("orders-dlq").received()
    assert message["Attributes"]["MessageGroupId"] == "tenant-7"


def _as_sent(value):
    return {name: content for name, content in value.items() if name in ("DataType", "StringValue", "BinaryValue")}


def claiming_zlib(body):
    """A message as unpoison sends a large one."""
    claims = {"unpoison": {"DataType": "String", "StringValue": '{"id":"1","encoding":"zlib"}'}}
    return {"body": base64.b64encode(zlib.compress(body)).decode(), "MessageAttributes": claims}


@pytest.mark.parametrize("more", [0, 1], ids=["as large as we send any", "a byte larger"])
def test_a_bomb_of_compressed_bytes_arrives_unopened(lab, more):
    broker = lab.broker("orders")
    sent = claiming_zlib(bytes(MOST_BYTES + more))
    lab.queue("orders").send(**sent)
    (delivery,) = broker.fetch("orders", 10)
    assert (len(delivery.body) == MOST_BYTES) is not bool(more)
    assert more == 0 or delivery.body == sent["body"].encode()


def test_a_body_that_nobody_would_open_again_is_refused(lab):
    with pytest.raises(PayloadError, match="1,048,576"):
        given.publish(lab.broker("orders"), [Outgoing("1", "orders", bytes(MOST_BYTES + 1))])


@pytest.fixture
def packed(lab, monkeypatch):
    """Twelve messages, of which five are as much as may be unpacked at once."""
    monkeypatch.setattr(source, "FETCH_BYTES", MOST_AT_ONCE)
    broker, queue = lab.broker("orders"), lab.queue("orders")
    for n in range(12):
        queue.send(**claiming_zlib(str(n).encode().ljust(LARGE)))
    return broker


def test_no_more_is_unpacked_at_once_than_fits_into_memory(packed):
    taken = []
    while deliveries := packed.fetch("orders", 100):
        assert sum(len(delivery.body) for delivery in deliveries) <= MOST_AT_ONCE + LARGE
        taken += [delivery.body.strip() for delivery in deliveries]
        packed.settle(Settlement(gone=deliveries))
    assert sorted(taken, key=int) == [str(n).encode() for n in range(12)]


def test_what_waits_here_packed_goes_back_when_the_consumer_ends(lab, packed):
    packed.settle(Settlement(gone=packed.fetch("orders", 100)))
    packed.close()
    again = lab.broker("orders")
    lab.expect_depth(again, "orders", Depth(ready=7))
    assert {delivery.returned for delivery in again.fetch("orders", 100)} == {False}
