"""Letters that left the DLQ for a store are sent to where a replay would have sent them, and as it would have."""

import json
import struct

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.fault.kafka.test_foreign import BODY, ENVELOPE, records, stored
from unpoison.brokers.kafka.envelope import CLAIM
from unpoison.brokers.kafka.names import REPLAYS
from unpoison.errors import PayloadError, Refusal
from unpoison.model.dead_letter import WholeLetter
from unpoison.model.message import Outgoing
from unpoison.model.verdict import ErrorClassification
from unpoison.port.broker import STORED, Dead, Settlement
from unpoison.store.letters.sql_letters import letters_for
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until

SPRING = [("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", struct.pack(">i", 0))]
CONNECT = [("__connect.errors.topic", b"orders"), ("__connect.errors.exception.message", b"no")]
FROM_MAIL = ENVELOPE | {"original_topic": "mail", "original_headers": {"trace": "abc"}}
ODD = [("trace", b"abc"), ("trace", b"\xff"), ("empty", None), ("x-delivery-attempts", b"mine")]


def taken(lab, letters):
    """All letters, as a store gives them after they have left the DLQ."""
    store = letters_for(f"sqlite:///{lab.folder}/letters.db")
    store.open()
    found = letters.whole()
    assert store.put(found).new == len(found)
    ids = [each.letter.id for each in found]
    assert list(letters.remove(ids)) == ids
    assert letters.count() == 0
    kept = [store.find(id_)[0].whole for id_ in ids]
    store.close()
    return kept


def given_up(lab, classification=ErrorClassification.PERMANENT):
    """Everything that waits becomes a letter."""
    broker = lab.broker("orders")
    held = broker.fetch("orders", 100)
    letters = [msgspec.structs.replace(given.letter_of(each), classification=str(classification)) for each in held]
    broker.settle(Settlement(dead=[Dead(*each) for each in zip(held, letters, strict=True)]))
    broker.close()


def everything(lab, source="orders"):
    """Where each record stands outside of the DLQ, with all that is in it but the claim of a replay."""
    broker = lab.broker(source)
    names = broker.connection.names(source)
    places = [(topic, n) for topic in (names.topic, names.retry) for n in range(broker.topology.partitions(topic))]
    read = list(broker.reader.read(broker.connection.queries.bounds(places)))
    broker.close()
    return [
        (each.topic(), each.partition(), each.key(), each.value(), [pair for pair in each.headers() or () if pair[0] != CLAIM])
        for each in read
    ]


def send(lab, body, headers=ODD, key=b"\xff\x00"):
    lab.send_foreign(body, key, headers)
    given_up(lab)


def large(lab):
    lab.limit("20000", "dlq")
    send(lab, b"x" * 50_000)


def enveloped(lab, **told):
    stored(lab, json.dumps(ENVELOPE | told).encode(), ODD)


def crashed(lab):
    lab.send_foreign(b"1", b"\xff", ODD)
    given_up(lab, ErrorClassification.CRASH)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda lab: send(lab, b"\xff\x00"), id="ours"),
        pytest.param(lambda lab: send(lab, None), id="a tombstone"),
        pytest.param(crashed, id="one that crashed"),
        pytest.param(large, id="one that refers to its body"),
        pytest.param(lambda lab: send(lab, b"", [*ODD, *SPRING]), id="ours that a stranger had given up before"),
        pytest.param(lambda lab: stored(lab, b"\xff", [*ODD, *SPRING]), id="Spring"),
        pytest.param(lambda lab: stored(lab, None, [*CONNECT, *ODD]), id="Connect"),
        pytest.param(enveloped, id="an envelope"),
        pytest.param(lambda lab: enveloped(lab, original_value=None), id="an envelope of a tombstone"),
        pytest.param(lambda lab: enveloped(lab, original_headers={"a": "ü"}), id="an envelope with headers"),
        pytest.param(lambda lab: stored(lab, b"?", ODD), id="a letter that says nothing"),
    ],
)
def test_what_is_sent_back_is_what_a_replay_sends_byte_for_byte(lab, make):
    make(lab)
    before, letters = everything(lab), lab.letters("orders")
    whole = letters.whole()
    assert len(whole) == 1
    assert [each.letter for each in whole] == list(letters.browse())
    letters.replay([whole[0].letter.id])
    (again,) = [each for each in everything(lab) if each not in before]
    assert letters.send_back(whole) == STORED
    assert [each for each in everything(lab) if each not in before] == [again, again]


@pytest.mark.parametrize(
    ("body", "key", "headers", "arriving"),
    [
        (json.dumps(FROM_MAIL).encode(), b"another", ODD, [("trace", b"abc")]),
        (BODY, b"customer-7", [*ODD, ("kafka_dlt-original-topic", b"mail")], ODD[:3]),
    ],
    ids=["an envelope", "headers of Spring"],
)
def test_a_letter_of_another_system_goes_back_to_its_topic_and_nowhere_else(lab, body, key, headers, arriving):
    lab.broker("mail").publish([Outgoing(source="mail", id="before", body=b"before")])
    stored(lab, body, headers, key)
    before, letters = everything(lab), lab.letters("orders")
    assert letters.send_back(taken(lab, letters)) == STORED
    first, (value, key, sent) = records(lab, "mail")
    assert (first[0], value, key) == (b"before", BODY, b"customer-7")
    assert [pair for pair in sent if not pair[0].startswith("x-")] == arriving
    assert everything(lab) == before


def test_headers_that_no_text_can_hold_and_twice_the_same_name_survive_the_store(lab):
    send(lab, b"\xff\x00")
    letters = lab.letters("orders")
    (kept,) = taken(lab, letters)
    shown = [pair for pair in kept.headers if not pair[0].startswith("x-unpoison")]
    assert shown == [("trace", "abc"), ("trace", b"\xff"), ("empty", None), ("x-delivery-attempts", "mine"), ATTEMPTED]
    assert letters.send_back([kept]) == STORED
    broker = lab.broker("orders")
    (delivery,) = broker.fetch("orders", 10)
    native = broker.native(delivery)
    assert (delivery.body, native.key, list(native.headers)) == (b"\xff\x00", b"\xff\x00", ODD)
    assert (delivery.attempt, delivery.counters.replays) == (1, 1)


ATTEMPTED = ("x-delivery-attempts", "0")
"""Ours, for other tools."""


def test_one_that_cannot_be_sent_is_refused_with_the_reason_and_the_others_are_sent(lab):
    lab.limit("20000", "dlq")
    broker = lab.broker("orders")
    broker.publish([Outgoing("large", "orders", b"x" * 50_000), Outgoing("1", "orders", b"1"), Outgoing("2", "orders", b"2")])
    given_up(lab)
    enveloped(lab, original_topic="closed")
    topic, queries = broker.connection.names("orders").topic, broker.connection.queries
    for answer in queries.admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        answer.result(10)
    letters = lab.letters("orders")
    large = next(each for each in letters.browse() if each.message.id == "large")
    with pytest.raises(PayloadError, match=f"was too large for the DLQ, and Kafka has deleted the message at {topic}/0/0 since"):
        letters.replay([large.id])
    kept = sorted(taken(lab, letters), key=lambda each: each.letter.message.id)
    one, two, cut, closed = kept
    assert (cut.letter.message.id, cut.letter.body) == ("large", b"")
    garbage = [WholeLetter(letter=two.letter, native=native) for native in (None, b"", b"\xff", b"\x80", b"\x91\xc0", b"{}")]
    outcome = letters.send_back([cut, one, *garbage, closed, two])
    assert outcome.unknown == {}
    assert {number: each.refusal for number, each in outcome.refused.items()} == {
        0: Refusal.UNFIT,
        **dict.fromkeys(range(2, 8), Refusal.UNFIT),
        8: Refusal.NO_SUCH_SOURCE,
    }
    assert f"was too large for the DLQ, and Kafka has deleted the message at {topic}/0/0 since" in outcome.refused[0].reason
    assert "key and headers" in outcome.refused[2].reason
    assert "it came from topic 'closed', which does not exist" in outcome.refused[8].reason
    broker = lab.broker("orders")
    assert sorted(each.body for each in broker.fetch("orders", 10)) == [b"1", b"2"]
    assert [value for value, _, _ in records(lab, "orders")] == [b"1", b"2"]


def test_one_that_its_topic_refuses_does_not_stop_the_others(lab):
    bodies = [b"1", b"x" * 100_000, b"2"]
    given.dead_letters(lab, "orders", bodies)
    letters = lab.letters("orders")
    kept = taken(lab, letters)
    lab.limit("20000", "retry")
    outcome = letters.send_back(kept)
    assert {number: each.refusal for number, each in outcome.refused.items()} == {1: Refusal.TOO_LARGE}
    assert sorted(each.body for each in lab.broker("orders").fetch("orders", 10)) == [b"1", b"2"]


@pytest.mark.parametrize("is_there", [True, False], ids=["its topic exists", "its topic was deleted meanwhile"])
def test_a_letter_goes_to_the_group_that_gave_it_up(lab, is_there):
    url = lab.url
    lab.url = f"{url}&group=billing"
    given.dead_letters(lab, "orders", [b"1"])
    billing = lab.broker("orders").connection.names("orders").retry
    lab.url = url
    letters = lab.letters("orders")
    kept = taken(lab, letters)
    if is_there:
        lab.url = url.replace("&group=unpoison", "")  # whoever sends it may have no group
        letters = lab.letters("orders")
    else:
        (told,) = kept
        letters.send_back([told])  # it knows the topic from now on
        queries = letters.broker.connection.queries
        for answer in queries.admin.delete_topics([billing]).values():
            answer.result(10)
        wait_until(lambda: billing not in queries.topics(), lambda: "It is still there")
    assert letters.send_back(kept) == STORED
    lab.url = url
    ours = lab.broker("orders").connection.names("orders").retry
    sent = [each for each in everything(lab) if each[0] == ours]
    assert [each[1] for each in sent] == ([] if is_there else [REPLAYS])
    if is_there:
        lab.url = f"{url}&group=billing"
        (delivery,) = lab.broker("orders").fetch("orders", 10)
        assert (delivery.body, delivery.counters.replays) == (b"1", 1)


def test_without_a_group_a_letter_that_names_none_is_refused(lab):
    stored(lab, b"?", [])
    given.dead_letters(lab, "orders", [b"1"])
    kept = taken(lab, lab.letters("orders"))
    lab.url = lab.url.replace("&group=unpoison", "")
    outcome = lab.letters("orders").send_back(kept)
    assert [(number, "names no consumer group" in each.reason) for number, each in outcome.refused.items()] == [(0, True)]


def test_letters_behind_those_that_kafka_has_deleted_are_found(lab):
    given.dead_letters(lab, "orders", [b"0", b"1", b"2", b"3"])
    letters = lab.letters("orders")
    assert letters.count() == 4
    queries, names = letters.broker.connection.queries, letters.broker.connection.names("orders")
    for answer in queries.admin.delete_records([TopicPartition(names.dlq, 0, 3)]).values():
        answer.result(10)
    assert [each.letter.body for each in letters.whole(limit=2)] == [b"3"]


def test_bodies_that_letters_refer_to_count_for_what_is_taken_at_once(lab):
    lab.limit("20000", "dlq")
    lab.broker("orders").publish([Outgoing(str(number), "orders", bytes([number]) * 50_000) for number in range(4)])
    given_up(lab)
    letters = lab.letters("orders")
    first = letters.whole(most_bytes=60_000)
    assert len(first) == 2
    rest = letters.whole(after=first[-1].letter.id)
    assert sorted(each.letter.body[:1] for each in [*first, *rest]) == [b"\0", b"\1", b"\2", b"\3"]


def test_letters_of_a_dlq_with_several_partitions_come_in_the_order_of_time_and_within_bounds(lab):
    broker = lab.broker("orders")
    names, admin = broker.connection.names("orders"), broker.connection.queries.admin
    for answer in admin.create_partitions([NewPartitions(names.dlq, 3)]).values():
        answer.result(10)
    wait_until(lambda: len(broker.connection.queries.topics()[names.dlq].partitions) == 3, lambda: "There is one partition still")
    producer = Producer(broker.connection.address.options)
    for number in range(9):
        body = bytes([number]) * 10_000
        producer.produce(names.dlq, body, None, number % 3, timestamp=1_700_000_000_000 + number)
        assert producer.flush(30) == 0
    letters, found = lab.letters("orders"), []
    while page := letters.whole(after=found[-1].letter.id if found else "", limit=4, most_bytes=25_000):
        assert len(page) == 3
        found += page
    assert [each.letter.body[0] for each in found] == list(range(9))
