"""Letters that were moved into a store go back to where their messages came from, as they were."""

import json

import msgspec
import pytest

from tests.contract.nats_lab import NATSLab
from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.moved import moved
from unpoison.brokers.nats import stream_reading, wire
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.deadletters import NATSDeadLetters
from unpoison.brokers.nats.sending_back import Native
from unpoison.brokers.nats.url import address
from unpoison.errors import Refusal
from unpoison.port.broker import STORED, Dead, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def raw(lab):
    lab.broker("orders").close()
    connection = Connection(address(lab.url))
    yield connection
    connection.close()


def put_into_the_dlq(raw, block=b"", **changed):
    reply, future = raw.expect()
    raw.send(wire.publication(b"unpoison.dead.orders", reply, block, json.dumps(ENVELOPE | changed).encode()))
    assert b"error" not in raw.wait(future, "publishing")[1]


def fetched(broker, source="orders", count=1):
    found = []
    wait_until(lambda: found.extend(broker.fetch(source, 10)) or len(found) >= count, lambda: f"Only {len(found)} came")
    return found + list(broker.fetch(source, 10))


def given_up(broker, source="orders"):
    (delivery,) = fetched(broker, source)
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery))]))
    return delivery


def test_a_letter_of_another_program_goes_back_to_its_subject_and_nowhere_else(lab, raw):
    lab.broker("mail").close()
    put_into_the_dlq(raw, b"NATS/1.0\r\nX: 1\r\n\r\n", original_topic="mail", tier="gold")
    letters = lab.letters("orders")
    (stored,) = moved(letters, lab.folder)
    assert letters.count() == 0
    assert ("X", "1") in stored.headers
    assert b'"tier": "gold"' in stored.native
    assert letters.send_back([stored]) == STORED
    (delivery,) = fetched(lab.broker("mail"), "mail")
    assert (delivery.body, delivery.key, dict(delivery.headers)) == (BODY, "customer-7", {"X": "1"})
    assert delivery.counters.replays == 1
    assert not lab.broker("orders").fetch("orders", 10)
    assert not letters.browse(state=None)


def test_headers_that_are_no_text_and_those_of_one_name_come_back_as_they_were(lab):
    headers = [("X", b"\xff\xfe"), ("X", b"two"), ("Empty", b""), ("Nats-Msg-Id", b"m-1")]
    told = lab.send_foreign(b"\x00\xff", b"", headers)
    broker = lab.broker("orders")
    given_up(broker)
    letters = lab.letters("orders")
    (stored,) = moved(letters, lab.folder)
    assert [value for name, value in stored.headers if name == "X"] == [b"\xff\xfe", "two"]
    assert letters.send_back([stored]) == STORED
    (delivery,) = fetched(broker)
    assert (delivery.body, delivery.id, broker.native(delivery).headers) == (b"\x00\xff", "m-1", told.headers)
    assert broker.native(delivery).properties.items() >= told.properties.items()


def test_one_that_cannot_be_sent_stops_none_of_the_others(lab, raw):
    put_into_the_dlq(raw, original_topic="closed")
    put_into_the_dlq(raw, original_topic="orders.*")
    put_into_the_dlq(raw)
    letters = lab.letters("orders")
    outcome = letters.send_back(moved(letters, lab.folder))
    assert {number: each.refusal for number, each in outcome.refused.items()} == dict.fromkeys((0, 1), Refusal.NO_SUCH_SOURCE)
    assert "'closed'. NATS did not store it: no stream takes this subject" in outcome.refused[0].reason
    assert "it came from 'orders.*', and that is no subject of NATS" in outcome.refused[1].reason
    assert not outcome.unknown
    assert [each.body for each in fetched(lab.broker("orders"))] == [BODY]


def test_only_the_group_that_gave_it_up_gets_it_also_if_it_has_no_consumer_now(lab):
    with_group = f"{lab.url}&group=billing"
    streams = Connection(address(lab.url))
    config = {"name": "orders", "subjects": ["orders"], "storage": "file", "retention": "limits"}
    streams.ask("STREAM.CREATE.orders", config)
    broker, billing = lab.broker("orders"), NATSBroker(with_group)
    billing.open(["orders"])
    broker.publish(given.messages("orders", 1))
    broker.settle(Settlement(gone=fetched(broker)))
    given_up(billing)
    billing.close()
    letters = lab.letters("orders")
    (stored,) = moved(letters, lab.folder)
    assert letters.send_back([stored]) == STORED
    billing = NATSBroker(with_group)
    billing.open(["orders"])
    assert [each.counters.replays for each in fetched(billing)] == [1]
    assert not broker.fetch("orders", 10)
    billing.close()
    streams.ask("STREAM.DELETE.orders_billing_RETRIES")
    assert letters.send_back([stored]).refused[0].refusal is Refusal.NO_SUCH_SOURCE
    streams.close()


def test_sent_twice_it_is_stored_once_and_again_after_it_has_died_again(lab):
    given.dead_letters(lab, "orders", [b"1"])
    broker, letters = lab.broker("orders"), lab.letters("orders")
    for replays in (1, 2, 3):
        (stored,) = moved(letters, lab.folder)
        for _ in range(2):
            assert letters.send_back([stored]) == STORED
        depth = broker.depth("orders")
        assert depth.ready + depth.leased == 1
        assert given_up(broker).counters.replays == replays


def test_one_that_took_a_process_down_is_among_the_suspects_at_once(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    (delivery,) = fetched(broker)
    letter = msgspec.structs.replace(given.letter_of(delivery), classification="crash")
    broker.settle(Settlement(dead=[Dead(delivery, letter)]))
    letters = lab.letters("orders")
    letters.send_back(moved(letters, lab.folder))
    other = lab.broker("orders")
    assert not other.fetch("orders", 10)
    assert other.has_suspect("orders")


GARBAGE = [None, b"", b"\xff", b"\xc1", b"\x96\xa0\xa0\xa0\xa0\xa0\xa0", msgspec.msgpack.encode({"place": 1})]
NO_GROUP = msgspec.msgpack.encode(Native("a:1:1", "x y\r\nPUB a 0", "", "a:1:1", b""))


@pytest.mark.parametrize("native", [*GARBAGE, NO_GROUP], ids=repr)
def test_a_native_form_that_cannot_be_read_is_refused_and_stops_nothing(lab, native):
    given.dead_letters(lab, "orders", [b"1", b"2"])
    letters = lab.letters("orders")
    first, second = moved(letters, lab.folder)
    outcome = letters.send_back([msgspec.structs.replace(first, native=native), second])
    assert {number: each.refusal for number, each in outcome.refused.items()} == {0: Refusal.UNFIT}
    assert [each.body for each in fetched(lab.broker("orders"))] == [b"2"]


def test_one_that_is_too_large_for_the_server_is_refused_and_stops_nothing(lab):
    given.dead_letters(lab, "orders", [b"1", b"2"])
    letters = lab.letters("orders")
    first, second = moved(letters, lab.folder)
    limit = letters.broker.client.connection().max_payload
    message = msgspec.structs.replace(first.letter.message, body=b"x" * limit)
    larger = msgspec.structs.replace(first, letter=msgspec.structs.replace(first.letter, message=message))
    outcome = letters.send_back([larger, second])
    assert {number: each.refusal for number, each in outcome.refused.items()} == {0: Refusal.TOO_LARGE}
    assert [each.body for each in fetched(lab.broker("orders"))] == [b"2"]


def bodies_are_read_up_to_the_limit(lab, monkeypatch, most):
    """Without letters that another operator deals with."""
    bodies = [b"%d" % n + bytes(100_000) for n in range(6)]
    given.dead_letters(lab, "orders", bodies)
    letters = lab.letters("orders")
    monkeypatch.setattr(letters, "_half_done", lambda: {1})
    taken = []

    def watched(where, *arguments, looked=stream_reading.Looked):
        made = looked(where, *arguments)
        taken.append(len(made.body))
        return made

    monkeypatch.setattr(stream_reading, "Looked", watched)
    assert [each.letter.body for each in letters.whole(most_bytes=150_000)] == bodies[1:3]
    assert sum(taken) <= most, "More was read than was asked for"
    assert [each.letter.body for each in letters.whole(after="orders-2", limit=2)] == bodies[2:4]
    assert [each.letter.body for each in letters.whole(after="orders-3", most_bytes=1)] == bodies[3:4]


def test_bodies_are_read_up_to_the_limit(lab, monkeypatch):
    bodies_are_read_up_to_the_limit(lab, monkeypatch, 210_000)


@pytest.mark.long
@pytest.mark.servers("nats-2.9")
def test_bodies_are_read_up_to_the_limit_where_the_server_cannot_leave_them_out(tmp_path, nats_2_9, monkeypatch):
    with NATSLab(nats_2_9, tmp_path) as lab:
        bodies_are_read_up_to_the_limit(lab, monkeypatch, 310_000)


def test_letters_that_an_operator_has_half_dealt_with_are_not_taken(lab):
    given.dead_letters(lab, "orders", [b"1", b"2"])
    letters = lab.letters("orders")
    assert isinstance(letters, NATSDeadLetters)
    letters._claims.take([1], "discarded")
    (first,) = letters._one_by_one([1])
    letters.broker.client.store([letters._note(letters._letter(first, "dead"), "discarded")])
    assert [each.letter.id for each in letters.whole()] == ["orders-2"]
