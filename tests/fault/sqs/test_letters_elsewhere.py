"""A letter that has left SQS for a store goes back as it was: attributes, message group and body, to where it came from."""

import json
import os
import zlib

import msgspec
import pytest

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.sqs.test_foreign_letters import TRACE, given_up, redriven_into_the_dlq, waiting
from unpoison.brokers.sqs import deadletters
from unpoison.errors import Refusal
from unpoison.model.message import Delivery
from unpoison.port.broker import STORED
from unpoison.testing import given
from unpoison.testing.given import moved_into_a_store
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


@pytest.fixture
def letters(lab):
    """The DLQ of a source that exists."""
    return lab.letters("orders")


def nothing_else(lab, *names):
    others = {"orders", "orders-dlq", "orders-dlq-history", "orders-suspects", "orders-replays"}.difference(names)
    assert {name: waiting(lab.queue(name)) for name in others} == dict.fromkeys(others, 0)


def attributes(message):
    return {
        name: (value["DataType"], value.get("StringValue", value.get("BinaryValue")))
        for name, value in message["MessageAttributes"].items()
        if name != "unpoison"
    }


def test_what_sqs_gave_up_in_another_queue_goes_back_there_as_it_was(lab):
    mail = redriven_into_the_dlq(lab, "mail")
    theirs = {
        **TRACE,
        "bytes": {"DataType": "Binary.gif", "BinaryValue": b"\xff\x00"},
        "n": {"DataType": "Number", "StringValue": "7"},
    }
    given_up(lab, mail, "hello", MessageAttributes=theirs)
    letters = lab.letters("orders")
    (stored,) = moved_into_a_store(lab.folder, letters)
    assert dict(stored.headers) == {"trace": "abc", "bytes": b"\xff\x00", "n": "7"}
    assert letters.send_back([stored]) == STORED
    nothing_else(lab)
    (message,) = mail.received()
    assert message["Body"] == "hello"
    assert attributes(message) == {"trace": ("String", "abc"), "bytes": ("Binary.gif", b"\xff\x00"), "n": ("Number", "7")}
    assert not {"letter", "state"} & json.loads(message["MessageAttributes"]["unpoison"]["StringValue"]).keys()


@pytest.mark.parametrize("name", ["mail", "mail.fifo"])
def test_the_message_inside_of_an_envelope_goes_back_and_the_envelope_does_not(lab, letters, name):
    mail = lab.queue(name)
    mail.create(**({"FifoQueue": "true"} if name.endswith(".fifo") else {}))
    for topic in (name, "orders"):
        lab.queue("orders-dlq").send(json.dumps(ENVELOPE | {"original_topic": topic}))
    stored = moved_into_a_store(lab.folder, letters)
    assert [each.letter.body for each in stored] == [BODY, BODY]
    assert letters.send_back(stored) == STORED
    (message,) = mail.received()
    assert (message["Body"], message["Attributes"].get("MessageGroupId", "customer-7")) == (BODY.decode(), "customer-7")
    (delivery,) = lab.broker("orders").fetch("orders", 10)
    assert (delivery.body, delivery.key, delivery.counters.replays) == (BODY, "customer-7", 1)
    nothing_else(lab, "orders")


def test_attributes_of_the_sender_survive_also_those_for_which_there_is_no_place_beside_ours(lab, letters):
    theirs: dict[str, dict[str, str | bytes]] = {
        f"a{number}": {"DataType": "String.odd", "StringValue": str(number)} for number in range(9)
    }
    theirs["odd"] = {"DataType": "Binary", "BinaryValue": b"\xff\xfe"}
    lab.queue("orders").send("body", MessageAttributes=theirs)
    received: list[Delivery] = []

    def fail(payload: bytes, delivery: Delivery) -> None:
        received.append(delivery)
        if len(received) < 2:
            raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", fail, max_attempts=1)
    drained(app)
    (stored,) = moved_into_a_store(lab.folder, letters)
    assert letters.send_back([stored]) == STORED
    drained(app)
    first, second = (each.native.properties["message_attributes"] for each in received)
    assert (first, len(first)) == (second, 10)
    assert (received[0].id, dict(received[0].headers)) == (received[1].id, dict(received[1].headers))


def test_a_message_returns_to_its_group_of_a_fifo_queue(lab):
    def fail(number: int) -> None:
        raise ConnectionError("never")

    app = given.consumer(lab.app(), "orders.fifo", fail, max_attempts=1)
    for number, key in enumerate(["customer-7", None, "customer-8"]):
        app.publish("orders.fifo", number, key=key)
    drained(app)
    letters = lab.letters("orders.fifo")
    assert letters.send_back(moved_into_a_store(lab.folder, letters)) == STORED
    broker, found = lab.broker("orders.fifo"), []
    wait_until(lambda: found.extend(broker.fetch("orders.fifo", 10)) or len(found) == 3, lambda: "They did not come")
    groups = {each.body: (each.key, each.receipt.envelope["Attributes"]["MessageGroupId"]) for each in found}
    assert groups == {b"0": ("customer-7", "customer-7"), b"1": (None, "unpoison"), b"2": ("customer-8", "customer-8")}


def test_a_letter_whose_queue_is_gone_is_refused_and_the_others_are_sent(lab, letters):
    mail = lab.queue("mail")
    mail.create()
    for topic in ("closed", "mail", "orders"):
        lab.queue("orders-dlq").send(json.dumps(ENVELOPE | {"original_topic": topic}))
    stored = moved_into_a_store(lab.folder, letters)
    outcome = letters.send_back(stored)
    ((number, refused),) = outcome.refused.items()
    assert refused.refusal is Refusal.NO_SUCH_SOURCE
    assert "came from queue 'closed', which does not exist" in refused.reason
    assert stored[number].letter.original["topic"] == "closed"
    assert (waiting(mail), waiting(lab.queue("orders")), outcome.unknown) == (1, 1, {})


def test_a_source_that_was_deleted_is_made_again(lab, letters):
    given.dead_letters(lab, "orders", [b"1"])
    stored = moved_into_a_store(lab.folder, letters)
    lab.queue("orders").delete()
    assert letters.send_back(stored) == STORED
    assert waiting(lab.queue("orders")) == 1


def garbage(whole):
    """What may stand in a store in place of what was put there."""
    known = msgspec.msgpack.decode(whole.native)
    yield from (None, b"", os.urandom(40), whole.native[:-3], msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"id": "x"}))
    changes = (
        {"attributes": {"x": 1}},
        {"attributes": {"x": {"DataType": 1}}},
        {"system": {"SentTimestamp": "soon"}},
        {"system": []},
        {"body": b"\xff"},
        {"id": None},
    )
    yield from (msgspec.msgpack.encode(known | change) for change in changes)


def test_what_cannot_be_read_in_the_store_is_refused_and_stops_no_other(lab, letters):
    given.dead_letters(lab, "orders", [b"1"])
    (stored,) = moved_into_a_store(lab.folder, letters)
    broken = [msgspec.structs.replace(stored, native=native) for native in garbage(stored)]
    outcome = letters.send_back([*broken, stored])
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys(
        range(len(broken)), Refusal.UNFIT
    )
    assert "cannot be read" in outcome.refused[0].reason
    assert [each.body for each in lab.broker("orders").fetch("orders", 10)] == [b"1"]
    nothing_else(lab)


def test_one_for_which_sqs_refuses_a_whole_request_stops_no_other(lab, letters):
    given.dead_letters(lab, "orders", [b"0", b"1", b"2"])
    stored = moved_into_a_store(lab.folder, letters)
    known = msgspec.msgpack.decode(stored[1].native)
    known["attributes"]["AWS.not allowed"] = {"DataType": "None of SQS's", "StringValue": "x"}
    stored[1] = msgspec.structs.replace(stored[1], native=msgspec.msgpack.encode(known))
    outcome = letters.send_back(stored)
    assert (list(outcome.refused), outcome.unknown) == ([1], {})
    assert waiting(lab.queue("orders")) == 2


def test_what_is_compressed_counts_with_all_its_bytes(lab, letters):
    body = bytes(10_000_000)
    given.dead_letters(lab, "orders", [body] * 3)
    assert len(lab.queue("orders-dlq").received(VisibilityTimeout=0)[0]["Body"]) < 100_000
    assert len(letters.whole(limit=3, most_bytes=11_000_000)) == 2
    stored = moved_into_a_store(lab.folder, letters)
    assert len(zlib.compress(body)) < len(stored[0].native) < 200_000
    assert letters.send_back(stored) == STORED
    assert all(each.body == body for each in lab.broker("orders").fetch("orders", 3))


def test_bytes_come_back_whatever_they_travelled_as(lab, letters):
    bodies = [b"", bytes(range(256)), "ü\n".encode(), b"\x00"]
    given.dead_letters(lab, "orders", bodies)
    assert letters.send_back(moved_into_a_store(lab.folder, letters)) == STORED
    broker, found = lab.broker("orders"), []
    wait_until(lambda: found.extend(broker.fetch("orders", 10)) or len(found) == 4, lambda: "They did not come")
    assert sorted(each.body for each in found) == sorted(bodies)


def test_equal_letters_are_told_apart(lab, letters):
    for _ in range(2):
        lab.queue("orders-dlq").send("theirs")
    found = letters.whole()
    assert [each.has_identity for each in found] == [True, True]
    assert [each.letter.id for each in found] == [each.letter.id for each in letters.whole()]
    assert len({each.letter.id for each in found}) == 2


def test_without_an_answer_it_is_unknown_of_what_was_sent_and_nothing_more_is_sent(proxied_lab, monkeypatch):
    lab = proxied_lab
    given.dead_letters(lab, "orders", [f"<{number}>".encode() for number in range(25)])
    letters = lab.letters("orders")
    stored = moved_into_a_store(lab.folder, letters)
    monkeypatch.setattr(deadletters, "REQUESTS", 1)
    lost = stored[12].letter.body
    lab.proxy.loses = lambda body: lost in body
    outcome = letters.send_back(stored)
    lab.proxy.loses = lambda body: False
    assert sorted(outcome.unknown) == list(range(10, 20))
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys(
        range(20, 25), Refusal.NOT_SENT
    )


def test_a_right_that_is_missing_is_told_of_each(proxied_lab):
    lab = proxied_lab
    given.dead_letters(lab, "orders", [b"0", b"1"])
    letters = lab.letters("orders")
    stored = moved_into_a_store(lab.folder, letters)
    lab.proxy.denies = lambda operation, queue: operation.startswith("SendMessage")
    outcome = letters.send_back(stored)
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys(
        (0, 1), Refusal.NOT_PERMITTED
    )


def test_many_are_sent_in_few_requests_at_once(proxied_lab):
    lab = proxied_lab
    given.dead_letters(lab, "orders", [b"%d" % number for number in range(100)])
    letters = lab.letters("orders")
    stored = moved_into_a_store(lab.folder, letters)
    lab.proxy.seen.clear()
    assert letters.send_back(stored) == STORED
    assert len(lab.proxy.asked("SendMessageBatch", "orders")) == 10
    assert len(lab.proxy.seen) < 30
