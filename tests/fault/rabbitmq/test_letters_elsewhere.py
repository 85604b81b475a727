"""A letter that has left RabbitMQ for a store goes back as it was: what AMQP can hold, to the queue that it came from."""

import json
import os
import struct

import msgspec
import pika
import pytest

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from unpoison.brokers.rabbitmq import properties, writing
from unpoison.brokers.rabbitmq.deadletters import RabbitMQDeadLetters
from unpoison.brokers.rabbitmq.properties import Header, Properties
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import Delivery
from unpoison.port.broker import STORED
from unpoison.port.copying import dlq_index
from unpoison.testing import given
from unpoison.testing.given import moved_into_a_store
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


@pytest.fixture
def raw(raw):
    raw.confirm_delivery()
    return raw


@pytest.fixture
def letters(lab):
    """The DLQ of a source that exists."""
    return lab.letters("orders")


def publish(raw, queue, body, **fields):
    raw.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **fields))


def waiting(raw, queue):
    return raw.queue_declare(queue, passive=True).method.message_count


def arrived(raw, count=1):
    wait_until(lambda: waiting(raw, "orders.dlq") == count, lambda: "They did not arrive in the DLQ")


def taken(raw, queue):
    method, fields, body = raw.basic_get(queue, auto_ack=True)
    assert method is not None, f"{queue} is empty"
    return body, fields


def rejected_from(raw, queue, body, **fields):
    """Dead-lettered by RabbitMQ itself, out of a queue of another program."""
    to_the_dlq = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
    raw.queue_declare(queue, durable=True, arguments=to_the_dlq)
    publish(raw, queue, body, **fields)
    raw.basic_nack(raw.basic_get(queue)[0].delivery_tag, requeue=False)


def nothing_else(raw, *queues):
    others = {"orders", "orders.dlq", "orders.dlq.history", "orders.suspects"}.difference(queues)
    assert {queue: waiting(raw, queue) for queue in others} == dict.fromkeys(others, 0)


def test_what_rabbitmq_gave_up_in_another_queue_goes_back_there_as_it_was(lab, raw, letters):
    headers = {"trace": "abc", "bytes": b"\xff\x00", "deep": {"list": [1, "two", None], "yes": True}}
    rejected_from(
        raw, "mail", b"\xff\x00", headers=headers, content_type="text/odd", message_id="m1", priority=4, reply_to="answers"
    )
    arrived(raw)
    (stored,) = moved_into_a_store(lab.folder, letters)
    assert dict(stored.headers).items() >= {"trace": "abc", "bytes": b"\xff\x00", "deep": headers["deep"]}.items()
    assert dict(stored.headers)["x-death"][0]["queue"] == "mail"
    assert letters.send_back([stored]) == STORED
    nothing_else(raw, "mail")
    body, fields = taken(raw, "mail")
    assert (body, fields.content_type, fields.message_id, fields.priority) == (b"\xff\x00", "text/odd", "m1", 4)
    assert fields.headers.items() >= headers.items()
    assert not {"x-death", "x-unpoison-letter", "x-unpoison-state", "BCC"} & fields.headers.keys()


def test_the_message_inside_of_an_envelope_goes_back_and_the_envelope_does_not(lab, raw, letters):
    raw.queue_declare("mail", durable=True)
    told = {"original_topic": "mail", "original_headers": {"tenant": "7"}}
    publish(raw, "orders.dlq", json.dumps(ENVELOPE | told).encode(), headers={"sent-by": "program"})
    publish(raw, "orders.dlq", json.dumps(ENVELOPE).encode())
    arrived(raw, 2)
    first, second = moved_into_a_store(lab.folder, letters)
    assert (first.letter.body, first.headers[-1]) == (BODY, ("sent-by", "program"))
    assert letters.send_back([first, second]) == STORED
    nothing_else(raw, "mail", "orders")
    body, fields = taken(raw, "mail")
    assert (body, fields.headers["x-unpoison-key"], fields.headers["tenant"]) == (BODY, "customer-7", "7")
    (delivery,) = lab.broker("orders").fetch("orders", 10)
    assert (delivery.body, delivery.key, delivery.counters.replays) == (BODY, "customer-7", 1)


def sent_by_another_program(lab, names):
    """Two headers of one name, and bytes that are no text: more than a client can write."""
    values = (b"a", b"b", b"\xff\xfe", b"")
    entries = [Header(name, b"S" + struct.pack(">I", len(data)) + data) for name, data in zip(names, values, strict=True)]
    entries += [properties.header(b"weight", 1.5), Header(b"at", b"T" + (1_700_000_000).to_bytes(8))]
    others = (("content_type", b"\x08text/odd"), ("priority", b"\x04"), ("timestamp", (1_700_000_000).to_bytes(8)))
    data = properties.write("theirs", entries, Properties(others=others))
    assert lab.broker("orders").connections.store([Copy("", "orders", data, b"body")]).stored(0)
    return entries, others


def test_native_headers_and_properties_survive_bit_for_bit(lab, letters):
    entries, others = sent_by_another_program(lab, (b"trace", b"trace", b"odd", b"empty"))
    received: list[Delivery] = []

    def fail(payload: bytes, delivery: Delivery) -> None:
        received.append(delivery)
        raise ConnectionError("never")

    app = given.consumer(lab.app(), "orders", fail, max_attempts=1)
    drained(app)
    (stored,) = moved_into_a_store(lab.folder, letters)
    shown = [(name, value) for name, value in stored.headers if not name.startswith("x-")]
    assert shown == [("trace", "a"), ("trace", "b"), ("odd", b"\xff\xfe"), ("empty", ""), ("weight", 1.5), ("at", 1_700_000_000)]
    assert letters.send_back([stored]) == STORED
    (delivery,) = lab.broker("orders").fetch("orders", 1)
    found = properties.read(delivery.receipt.envelope)
    assert [each for each in found.headers.entries if not each.name.startswith(b"x-")] == entries
    assert (found.id, found.others) == ("theirs", others)


def test_a_letter_whose_queue_is_gone_is_refused_and_the_others_are_sent(lab, raw, letters):
    raw.queue_declare("mail", durable=True)
    for topic in ("closed", "mail", "orders", "ü" * 200):
        publish(raw, "orders.dlq", json.dumps(ENVELOPE | {"original_topic": topic}).encode())
    arrived(raw, 4)
    outcome = letters.send_back(moved_into_a_store(lab.folder, letters))
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys(
        (0, 3), Refusal.NO_SUCH_SOURCE
    )
    assert "came from queue 'closed', which does not exist" in outcome.refused[0].reason
    assert not outcome.unknown
    nothing_else(raw, "mail", "orders")
    assert (waiting(raw, "mail"), waiting(raw, "orders")) == (1, 1)


def test_a_source_that_another_program_made_and_deleted_refuses_its_own_letters_alone(lab, raw):
    raw.queue_declare("mail", durable=True)
    raw.queue_declare("orders", durable=True)
    letters = lab.letters("orders")
    for topic in ("orders", "mail"):
        publish(raw, "orders.dlq", json.dumps(ENVELOPE | {"original_topic": topic}).encode())
    arrived(raw, 2)
    stored = moved_into_a_store(lab.folder, letters)
    raw.queue_delete("orders")
    outcome = letters.send_back(stored)
    assert [(number, refused.refusal) for number, refused in outcome.refused.items()] == [(0, Refusal.NO_SUCH_SOURCE)]
    assert "unpoison did not make it" in outcome.refused[0].reason
    assert waiting(raw, "mail") == 1


def test_a_queue_that_is_deleted_while_letters_are_on_their_way_is_a_refusal(lab, raw, letters, monkeypatch):
    raw.queue_declare("mail", durable=True)
    for topic in ("mail", "orders"):
        publish(raw, "orders.dlq", json.dumps(ENVELOPE | {"original_topic": topic}).encode())
    arrived(raw, 2)
    stored = moved_into_a_store(lab.folder, letters)
    submit = writing.Writer.submit

    def late(self, copies):
        raw.queue_delete("mail")
        return submit(self, copies)

    monkeypatch.setattr(writing.Writer, "submit", late)
    outcome = letters.send_back(stored)
    assert [(number, refused.refusal) for number, refused in outcome.refused.items()] == [(0, Refusal.NO_SUCH_SOURCE)]
    assert waiting(raw, "orders") == 1


def garbage(whole):
    """What may stand in a store in place of what was put there."""
    known, body = msgspec.msgpack.decode(whole.native)
    yield from (None, b"", os.urandom(40), whole.native[:-3], msgspec.msgpack.encode(b"x"), msgspec.msgpack.encode(("a", 1)))
    yield from (msgspec.msgpack.encode((data, body)) for data in (b"", b"\xff\xff", known[:-1], known + b"\0", os.urandom(80)))
    table = Header(b"deep", b"F" + struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff")
    yield msgspec.msgpack.encode((properties.write("id", [table]), None))


def test_what_cannot_be_read_in_the_store_is_refused_and_stops_no_other(lab, raw, letters):
    given.dead_letters(lab, "orders", [b"1"])
    (stored,) = moved_into_a_store(lab.folder, letters)
    broken = [msgspec.structs.replace(stored, native=native) for native in garbage(stored)]
    outcome = letters.send_back([*broken, stored])
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys(
        range(len(broken)), Refusal.UNFIT
    )
    assert "cannot be read" in outcome.refused[0].reason
    assert not outcome.unknown
    nothing_else(raw, "orders")
    assert [each.body for each in lab.broker("orders").fetch("orders", 100)] == [b"1"]


def test_headers_that_no_frame_can_hold_are_refused(lab, raw, letters):
    large = {f"h{number}": "x" * 2_000 for number in range(90)}
    for headers in (large, {"tenant": "7"}):
        publish(raw, "orders.dlq", json.dumps(ENVELOPE | {"original_headers": headers}).encode())
    arrived(raw, 2)
    outcome = letters.send_back(moved_into_a_store(lab.folder, letters))
    assert [(number, refused.refusal) for number, refused in outcome.refused.items()] == [(0, Refusal.TOO_LARGE)]
    assert waiting(raw, "orders") == 1


def test_equal_letters_that_nobody_can_tell_apart_say_so(lab, raw, letters):
    given.dead_letters(lab, "orders", [b"ours"])
    for _ in range(2):
        publish(raw, "orders.dlq", b"theirs")
    arrived(raw, 3)
    found = letters.whole()
    assert [(each.letter.body, each.has_identity) for each in found] == [(b"ours", True), (b"theirs", False), (b"theirs", False)]
    assert len({each.letter.id for each in found}) == 3


def test_a_message_of_ours_that_rabbitmq_gave_up_has_an_identity(lab, raw, letters):
    lab.app().publish("orders", b"1")
    wait_until(lambda: waiting(raw, "orders") == 1, lambda: "It did not arrive")
    raw.basic_nack(raw.basic_get("orders")[0].delivery_tag, requeue=False)
    arrived(raw)
    (found,) = letters.whole()
    assert found.has_identity
    (stored,) = moved_into_a_store(lab.folder, letters)
    assert letters.send_back([stored]) == STORED
    wait_until(lambda: waiting(raw, "orders") == 1, lambda: "It did not arrive")
    raw.basic_nack(raw.basic_get("orders")[0].delivery_tag, requeue=False)
    arrived(raw)
    (again,) = letters.whole()
    assert (again.has_identity, again.letter.replays) == (True, 1)
    assert again.letter.id != found.letter.id


def test_without_an_answer_it_is_unknown_of_what_was_sent_and_nothing_more_is_sent(lab, monkeypatch):
    bodies = [f"<{number}>".encode() for number in range(10)]
    given.dead_letters(lab, "orders", bodies)
    stored = moved_into_a_store(lab.folder, lab.letters("orders"))
    monkeypatch.setattr(dlq_index.portions, "__defaults__", (4, *dlq_index.portions.__defaults__[1:]))
    with lab.losing_answers(b"<6>") as broker:
        outcome = RabbitMQDeadLetters(broker, "orders").send_back(stored)
    assert set(outcome.unknown) <= {4, 5, 6, 7}
    assert 6 in outcome.unknown
    assert {number: refused.refusal for number, refused in outcome.refused.items()} == dict.fromkeys((8, 9), Refusal.NOT_SENT)
    assert [each.body for each in lab.broker("orders").fetch("orders", 100)] == bodies[:8]


def test_a_server_that_is_away_is_an_error_since_nothing_was_sent(lab):
    given.dead_letters(lab, "orders", [b"1"])
    letters = lab.letters("orders")
    stored = moved_into_a_store(lab.folder, letters)
    letters.broker.close()
    with pytest.raises(BrokerUnavailable):
        letters.send_back(stored)
