"""Letters that another system wrote into the DLQ go back to the topic that they came from, as they were."""

import json
import struct

import pytest
from confluent_kafka import Producer

from unpoison.brokers.kafka.url import address
from unpoison.errors import PayloadError
from unpoison.model.message import Outgoing

ENVELOPE = {
    "original_topic": "orders",
    "original_partition": 0,
    "original_offset": 17,
    "original_key": "customer-7",
    "original_value": {"id": 7, "total": 1.10},
    "error": "ValueError: total is odd",
    "classification": "permanent",
    "failed_at": "2026-08-01T10:00:00+00:00",
}
BODY = b'{"id": 7, "total": 1.1}'


def test_the_message_inside_of_an_envelope_is_shown_and_replayed_with_its_key(lab):
    stored(lab, json.dumps(ENVELOPE).encode(), [], key=b"anything")
    dlq = lab.dlq("orders")
    (letter,) = dlq.peek()
    assert (letter.body, letter.message.key, letter.classification) == (BODY, "customer-7", "permanent")
    assert (letter.error_type, letter.error, letter.last_failed_at) == ("ValueError", "total is odd", 1785578400.0)
    assert {name: letter.original[name] for name in ("topic", "partition", "offset", "key")} == {
        "topic": "orders",
        "partition": 0,
        "offset": 17,
        "key": "customer-7",
    }
    assert dlq.replay_one()
    assert [(value, key) for value, key, _ in records(lab, "orders")] == [(BODY, b"customer-7")]
    (delivery,) = lab.broker("orders").fetch("orders", 10)
    assert (delivery.body, delivery.key, delivery.counters.replays, delivery.attempt) == (BODY, "customer-7", 1, 1)
    assert (dlq.count(), [each.state for each in dlq.letters(state=None)]) == (0, ["replayed"])


def test_a_tombstone_inside_of_an_envelope_is_replayed_as_one(lab):
    stored(lab, json.dumps(ENVELOPE | {"original_value": None}).encode(), [])
    (letter,) = lab.dlq("orders").peek()
    assert letter.is_tombstone
    lab.dlq("orders").replay_one()
    assert [value for value, _, _ in records(lab, "orders")] == [None]


def test_a_letter_from_another_topic_goes_back_there_and_not_to_the_topic_of_the_dlq(lab):
    lab.broker("mail").publish([Outgoing(source="mail", id="before", body=b"before")])
    stored(lab, json.dumps(ENVELOPE | {"original_topic": "mail", "original_partition": 99}).encode(), [])
    lab.dlq("orders").replay_one()
    assert [value for value, _, _ in records(lab, "mail")] == [b"before", BODY]
    assert not lab.broker("orders").fetch("orders", 10)


def test_a_letter_from_a_topic_that_is_gone_is_not_sent_anywhere(lab):
    stored(lab, json.dumps(ENVELOPE | {"original_topic": "closed"}).encode(), [])
    dlq = lab.dlq("orders")
    with pytest.raises(PayloadError, match="came from topic 'closed', which does not exist"):
        dlq.replay_one()
    assert dlq.count() == 1


def test_a_replay_leaves_behind_what_spring_wrote_and_keeps_what_the_sender_wrote(lab):
    spring = [("kafka_original-topic", b"orders"), ("retry_topic-attempts", struct.pack(">i", 4)), ("kafka_topic", b"mine")]
    stored(lab, b"{}", [("trace", b"abc"), ("trace", b"\xff"), *spring, ("kafka_exception-message", b"no")])
    (letter,) = lab.dlq("orders").peek()
    assert (letter.attempts, letter.message.headers) == (3, {"trace": "\\xff", "kafka_topic": "mine"})
    lab.dlq("orders").replay_one()
    ((_, key, headers),) = records(lab, "orders")
    sent = [pair for pair in headers if not pair[0].startswith("x-")]
    assert (key, sent) == (b"key", [("trace", b"abc"), ("trace", b"\xff"), ("kafka_topic", b"mine")])


def test_a_replay_that_fails_in_the_other_system_again_counts_its_replays(lab):
    """Spring copies the headers of the record, ours among them."""
    stored(lab, b"{}", [("kafka_dlt-original-topic", b"orders")])
    for replays in (0, 1):
        (letter,) = lab.dlq("orders").peek()
        assert letter.replays == replays
        lab.dlq("orders").replay_one()
        _, _, headers = records(lab, "orders")[-1]
        stored(lab, b"{}", [*headers, ("kafka_dlt-original-topic", b"orders")])


@pytest.mark.parametrize("is_stored", [True, False], ids=["the copy was stored", "the copy was not stored"])
def test_an_operator_that_dies_in_the_middle_writes_nothing_but_messages_into_a_topic_of_others(lab, monkeypatch, is_stored):
    stored(lab, json.dumps(ENVELOPE).encode(), [])
    dlq = lab.dlq("orders")
    connection = dlq._letters._connection
    store = connection.must_store

    def failing(found, what):
        if what == "sending letters again":
            if is_stored:
                store(found, what)
            raise SystemExit
        store(found, what)

    monkeypatch.setattr(connection, "must_store", failing)
    with pytest.raises(SystemExit):
        dlq.replay_one()
    dlq.close()
    again = lab.dlq("orders")
    if is_stored:
        assert (again.count(), again.replay_all().count) == (0, 0)
    else:
        assert (again.count(), again.replay_all().count) == (1, 1)
    assert [value for value, _, _ in records(lab, "orders")] == [BODY]


def test_a_letter_is_sent_once_although_another_program_writes_into_its_topic_meanwhile(lab, monkeypatch):
    stored(lab, json.dumps(ENVELOPE).encode(), [])
    dlq = lab.dlq("orders")
    connection = dlq._letters._connection
    store = connection.must_store

    def busy(found, what):
        if what == "sending letters again":
            lab.broker("orders").publish([Outgoing(source="orders", id="other", body=b"other")])
        store(found, what)

    monkeypatch.setattr(connection, "must_store", busy)
    assert dlq.replay_one().count == 1
    assert [value for value, _, _ in records(lab, "orders")] == [b"other", BODY]


def stored(lab, body, headers, key=b"key"):
    lab.broker("orders")
    where = address(lab.url)
    producer = Producer(where.options)
    producer.produce(f"{where.prefix}orders.dlq", body, key, headers=headers)
    producer.flush()


def records(lab, source):
    """Value, key and headers of all that is in the topic of this source."""
    broker = lab.broker(source)
    topic = broker.connection.names(source).topic
    places = [(topic, number) for number in range(broker.topology.partitions(topic))]
    return [(each.value(), each.key(), each.headers()) for each in broker.reader.read(broker.connection.queries.bounds(places))]
