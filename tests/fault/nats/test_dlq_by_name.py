"""A DLQ of any name: that of a source, and a stream of another program."""

import json

import pytest

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from tests.fault.scenes import collected, letters_in_store
from unpoison.brokers import foreign_dlq, url_with_dlq
from unpoison.brokers.nats import wire
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.url import address
from unpoison.errors import CapabilityError, ConfigError, PayloadError, Permanent
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


@pytest.fixture
def raw(lab):
    connection = Connection(address(lab.url))
    yield connection
    connection.close()


def failing(payload: bytes) -> None:
    raise Permanent("no")


def put(raw, subject, body, block=b""):
    reply, future = raw.expect()
    raw.send(wire.publication(subject, reply, block, body))
    assert b"error" not in raw.wait(future, "publishing")[1]


def stream(raw, name, subject, **more):
    raw.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject], **more}, "making a stream")


def fetched(lab, source):
    broker, found = lab.broker(source), []
    wait_until(lambda: found.extend(broker.fetch(source, 10)) or found, lambda: "It did not come")
    return [(each.body, each.key, each.counters.replays) for each in found]


def test_a_source_has_its_letters_in_the_stream_that_is_named(lab, raw):
    app = lab.app()
    app.consumer("orders", dlq="LOST", isolation="inline")(failing)
    app.publish("orders", b"1")
    drained(app)
    dlq = app.dlq("orders")
    (letter,) = dlq.peek()
    assert (letter.body, letter.id.startswith("LOST-")) == (b"1", True)
    streams = [each["config"]["name"] for each in raw.ask("STREAM.LIST", {}, "listing")["streams"]]
    assert "LOST" in streams
    assert "orders_DLQ" not in streams
    assert dlq.replay_one(letter.id)
    drained(app)
    assert [each.state for each in dlq.letters(state=None)] == ["replayed", "dead"]
    assert dlq.discard_all().count == 1
    assert (dlq.purge().history, dlq.count()) == (2, 0)
    with pytest.raises(ConfigError, match="--source orders"):
        foreign_dlq(app.settings.url, "LOST")


def test_the_usual_dlq_may_be_there_too(lab):
    given.dead_letters(lab, "orders", [b"old"])
    app = lab.app()
    app.consumer("orders", dlq="LOST", isolation="inline")(failing)
    app.publish("orders", b"new")
    drained(app)
    assert [letter.body for letter in app.dlq("orders").peek()] == [b"new"]
    assert [letter.body for letter in lab.dlq("orders").peek()] == [b"old"]


def test_letters_of_another_program_are_shown_and_go_back(lab, raw):
    lab.broker("orders", "mail").close()
    stream(raw, "FAILED", "failed.>", retention="workqueue")
    put(raw, b"failed.a", json.dumps(ENVELOPE).encode())
    put(raw, b"failed.b", json.dumps(ENVELOPE | {"original_topic": "mail", "original_value": "two"}).encode())
    letters = foreign_dlq(lab.url, "FAILED")
    first, second = letters.browse()
    assert [(each.source, each.body) for each in (first, second)] == [("orders", BODY), ("mail", b"two")]
    assert letters.browse(only=second.id) == letters.browse(after=first.id) == [second]
    assert letters.browse(until=letters.freeze()) == [first, second]
    with pytest.raises(CapabilityError, match="move the letters into a store"):
        letters.remove([first.id], keep_as="discarded")
    assert letters.replay([first.id, second.id]) == [first.id, second.id]
    assert (letters.count(), letters.browse()) == (0, [])
    assert fetched(lab, "orders") == [(BODY, "customer-7", 1)]
    assert fetched(lab, "mail") == [(b"two", "customer-7", 1)]


def test_letters_of_another_program_are_collected_and_sent_back_from_the_store(lab, raw):
    lab.broker("orders").close()
    stream(raw, "FAILED", "failed")
    for topic in ("orders", "FAILED"):
        put(raw, b"failed", json.dumps(ENVELOPE | {"original_topic": topic}).encode())
    assert collected(lab, "FAILED").new == 2
    assert collected(lab, "FAILED").moved == 0
    with letters_in_store(lab, "FAILED") as letters:
        known = {each.source: each.id for each in letters.browse()}
        assert letters.replay([known["orders"]]) == [known["orders"]]
        with pytest.raises(PayloadError, match="does not say where it came from"):
            letters.replay([known["FAILED"]])
    assert fetched(lab, "orders") == [(BODY, "customer-7", 1)]


def test_a_stream_that_lets_nobody_delete_can_be_looked_at(lab, raw):
    stream(raw, "FAILED", "failed", deny_delete=True)
    put(raw, b"failed", json.dumps(ENVELOPE).encode())
    letters = foreign_dlq(lab.url, "FAILED")
    (letter,) = letters.browse()
    for change in (letters.replay, letters.remove):
        with pytest.raises(CapabilityError, match="deny_delete"):
            change([letter.id])
    letters.broker.close()


def test_names_that_no_stream_can_have_are_refused(lab):
    for name in ("orders.DLT", "orders"):
        with pytest.raises(ConfigError, match=r"cannot be|would share"):
            url_with_dlq(lab.url, "orders", name)
    with pytest.raises(ConfigError, match="There is no stream 'nowhere'"):
        foreign_dlq(lab.url, "nowhere")
