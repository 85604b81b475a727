"""What another program put into the DLQ is understood, and goes back to the subject that it came from."""

import json

import pytest

from tests.fault.kafka.test_foreign import BODY, ENVELOPE
from unpoison.brokers.nats import deadletters, wire
from unpoison.brokers.nats.claims import store_first
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.url import address
from unpoison.errors import PayloadError
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def raw(lab):
    lab.broker("orders").close()
    connection = Connection(address(lab.url))
    yield connection
    connection.close()


def put_into_the_dlq(raw, **changed):
    reply, future = raw.expect()
    raw.send(wire.publication(b"unpoison.dead.orders", reply, b"", json.dumps(ENVELOPE | changed).encode()))
    assert b"error" not in raw.wait(future, "publishing")[1]


def fetched(lab, source):
    broker, found = lab.broker(source), []
    wait_until(lambda: found.extend(broker.fetch(source, 10)) or found, lambda: "It did not come")
    return [(each.body, each.key, each.counters.replays) for each in found]


def test_the_message_inside_of_an_envelope_is_shown_replayed_and_discarded(lab, raw):
    put_into_the_dlq(raw)
    put_into_the_dlq(raw, original_value="two", original_headers={"trace": "a\nb"})
    dlq = lab.dlq("orders")
    first, second = dlq.peek()
    assert (first.body, first.message.key, first.error, first.classification) == (BODY, "customer-7", "total is odd", "permanent")
    assert (second.message.headers, first.original["offset"]) == ({"trace": "a\nb"}, 17)
    dlq.replay_one(first.id)
    assert fetched(lab, "orders") == [(BODY, "customer-7", 1)]
    dlq.discard(second.id)
    dealt_with = {(each.state, each.body, each.error) for each in dlq.letters(state=None)}
    assert dealt_with == {("replayed", BODY, "total is odd"), ("discarded", b"two", "total is odd")}


def test_a_letter_from_another_subject_goes_back_there_and_to_nobody_else(lab, raw):
    lab.broker("mail").close()
    put_into_the_dlq(raw, original_topic="mail")
    dlq = lab.dlq("orders")
    assert dlq.replay_all().count == 1
    assert fetched(lab, "mail") == [(BODY, "customer-7", 1)]
    assert not lab.broker("orders").fetch("orders", 10)
    assert (dlq.count(), [each.state for each in dlq.letters(state=None)]) == (0, ["replayed"])
    assert dlq.purge().history == 1
    assert not list(dlq.letters(state=None))


@pytest.mark.parametrize("subject", ["closed", "orders.*", "unpoison.dead.orders", "$JS.API.STREAM.LIST"])
def test_a_letter_from_a_subject_that_nobody_keeps_is_not_sent_anywhere_and_can_be_discarded(lab, raw, subject):
    put_into_the_dlq(raw, original_topic=subject)
    dlq = lab.dlq("orders")
    for _ in range(2):
        with pytest.raises(PayloadError, match="Letter 'orders-1' cannot be sent"):
            dlq.replay_one()
    assert dlq.count() == 1
    dlq.discard("orders-1")
    assert dlq.count() == 0


def test_a_replay_that_an_operator_had_begun_is_finished_by_the_next_one_and_sent_once(lab, raw, monkeypatch):
    lab.broker("mail").close()
    put_into_the_dlq(raw, original_topic="mail")
    dlq = lab.dlq("orders")

    def cut_off(client, names, made):
        if any(".replay." in each.subject for each in made):
            raise SystemExit
        return store_first(client, names, made)

    with monkeypatch.context() as patched:
        patched.setattr(deadletters, "store_first", cut_off)
        with pytest.raises(SystemExit):
            dlq.replay_one()
    dlq.close()
    again = lab.dlq("orders")
    again.replay_all()
    assert again.count() == 0
    assert fetched(lab, "mail") == [(BODY, "customer-7", 1)]
