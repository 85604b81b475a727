"""Letters that are too large for the DLQ, and letters that other systems wrote."""

import struct

import pytest
from confluent_kafka import Producer, TopicPartition

from unpoison.brokers.kafka import letters
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable, PayloadError, Permanent
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


def fail(body: bytes) -> None:
    raise Permanent("no " * 20_000)


@pytest.mark.parametrize("size", [8_000, 200_000], ids=["fits without its history", "is larger than the DLQ takes"])
def test_a_letter_that_is_too_large_for_the_dlq_is_never_lost(lab, size):
    lab.limit("20000", "dlq")
    body = bytes(range(256)) * (size // 256)
    app = given.consumer(lab.app(), "orders", fail)
    app.publish("orders", body, id="large", headers={"trace": "x" * 100})
    app.publish("orders", b"small", id="small")
    drained(app)
    found = {letter.message.id: letter for letter in lab.dlq("orders").peek()}
    assert found["large"].body == body
    assert found["large"].message.headers == {"trace": "x" * 100}
    assert found["large"].error.startswith("no no")
    assert found["small"].body == b"small"
    lab.dlq("orders").replay_one("large")
    (replayed,) = lab.broker("orders").fetch("orders", 10)
    assert (replayed.id, replayed.body, replayed.headers) == ("large", body, {"trace": "x" * 100})


@pytest.mark.parametrize("how", ["cut", "deleted and made anew"])
def test_a_letter_whose_body_is_gone_is_not_sent_without_it(lab, how):
    lab.limit("20000", "dlq")
    app = given.consumer(lab.app(), "orders", fail)
    app.publish("orders", b"x" * 50_000, id="large")
    app.publish("orders", b"small", id="small")
    drained(app)
    broker = lab.broker("orders")
    topic = broker.connection.names("orders").topic
    if how == "cut":
        for answer in broker.connection.queries.admin.delete_records([TopicPartition(topic, 0, 1)]).values():
            answer.result(10)
    else:
        for answer in broker.connection.queries.admin.delete_topics([topic]).values():
            answer.result(10)
        wait_until(lambda: topic not in broker.connection.queries.cluster().topics, lambda: "It is still there")
        lab.broker("orders").publish(given.messages("orders", 1))  # stands where the large one stood
    dlq = lab.dlq("orders")
    small, large = sorted(dlq.peek(), key=lambda each: each.message.id == "large")
    assert large.body == b""
    with pytest.raises(PayloadError, match=f"at {topic}/0/0 since.*dlq discard {large.id}"):
        dlq.replay_all()
    assert dlq.count() == 2
    dlq.discard(large.id)
    assert dlq.replay_all().replayed == (small.id,)


@pytest.mark.parametrize("kind", ["retry", "dlq"])
def test_what_its_topic_takes_is_not_refused_for_its_company(lab, kind):
    """The client sends several records as one, and the server measures that."""
    lab.limit("20000", kind)
    broker = lab.broker("orders")
    broker.publish([Outgoing(str(number), "orders", bytes([number]) * 9_000) for number in range(5)])
    held = broker.fetch("orders", 10)
    if kind == "retry":
        broker.settle(Settlement(kept=[Kept(each, Counters(attempts=1)) for each in held]))
        assert sorted(each.body for each in broker.fetch("orders", 10)) == sorted(each.body for each in held)
    else:
        broker.settle(Settlement(dead=[Dead(each, given.letter_of(each)) for each in held]))
        names = broker.connection.names("orders")
        stored = broker.reader.read({(names.dlq, 0): (0, 5)})
        assert sorted(record.value() or b"" for record in stored) == sorted(each.body for each in held)


def test_what_was_stored_before_something_else_was_refused_is_stored_once(lab):
    broker = lab.broker("orders")
    broker.publish([Outgoing("twice", "orders", b"0"), Outgoing("twice", "orders", b"1"), Outgoing("dead", "orders", b"2")])
    first, second, dead = broker.fetch("orders", 10)
    kept = [Kept(first, Counters(attempts=1)), Kept(second, Counters(attempts=1))]
    settlement = Settlement(kept=kept, dead=[Dead(dead, given.letter_of(dead))])
    with lab.dead_letters_unwritable(), pytest.raises(BrokerUnavailable, match=r"orders\.dlq' takes only smaller"):
        broker.settle(settlement)
    broker.settle(settlement)
    names = broker.connection.names("orders")
    assert broker.connection.queries.ends([(names.retry, 0), (names.dlq, 0)]) == {(names.retry, 0): 2, (names.dlq, 0): 1}
    assert {each.body for each in broker.fetch("orders", 10)} == {b"0", b"1"}


def test_a_retry_that_is_too_large_for_its_topic_waits_until_that_takes_it(lab):
    lab.limit("20000", "retry")
    broker = lab.broker("orders")
    broker.publish([Outgoing("large", "orders", b"x" * 100_000)])
    (held,) = broker.fetch("orders", 1)
    again = Settlement(kept=[Kept(held, Counters(attempts=1))])
    with pytest.raises(BrokerUnavailable, match=r"unpoison\.retry --add-config max\.message\.bytes"):
        broker.settle(again)
    lab.limit("1000000", "retry")
    broker.settle(again)
    (again,) = broker.fetch("orders", 10)
    assert (again.body, again.attempt) == (held.body, 2)


def test_a_letter_that_a_crash_left_twice_is_one_letter(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 1))
    (held,) = broker.fetch("orders", 1)
    letter, record = given.letter_of(held), held.receipt.record
    broker.connection.must_store([letters.letter_record(broker.connection.names("orders"), letter, record)], "crashing")
    broker.settle(Settlement(dead=[Dead(held, letter)]))
    names = broker.connection.names("orders")
    assert broker.connection.queries.ends([(names.dlq, 0)]) == {(names.dlq, 0): 2}
    dlq = lab.dlq("orders")
    assert (dlq.count(), len(dlq.peek()), broker.depth("orders").dead) == (1, 1, 1)
    assert dlq.replay_all().count == 1
    assert len(broker.fetch("orders", 10)) == 1


def test_a_letter_of_spring_kafka_is_read_and_replayed(lab):
    stored(
        lab,
        b"{}",
        [
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", struct.pack(">i", 3)),
            ("kafka_dlt-original-offset", struct.pack(">q", 17)),
            ("kafka_dlt-original-consumer-group", b"shop"),
            ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
            ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
            ("kafka_dlt-exception-message", b"Listener failed; no stock"),
            ("kafka_dlt-exception-stacktrace", b"java.lang.IllegalStateException: no stock\n\tat Shop.handle"),
            ("trace", b"abc"),
        ],
    )
    (letter,) = lab.dlq("orders").peek()
    assert (letter.error_type, letter.error) == ("java.lang.IllegalStateException", "Listener failed; no stock")
    assert letter.original == {"topic": "orders", "partition": 3, "offset": 17, "group": "shop"}
    assert "Shop.handle" in letter.traceback
    assert "Spring Kafka" in letter.rule
    assert lab.dlq("orders").replay_one()
    (replayed,) = lab.broker("orders").fetch("orders", 10)
    assert (replayed.body, replayed.headers["trace"]) == (b"{}", "abc")


def test_a_letter_of_kafka_connect_is_read(lab):
    stored(
        lab,
        b"\xff",
        [
            ("__connect.errors.topic", b"orders"),
            ("__connect.errors.partition", b"0"),
            ("__connect.errors.offset", b"42"),
            ("__connect.errors.connector.name", b"sink"),
            ("__connect.errors.stage", b"VALUE_CONVERTER"),
            ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
            ("__connect.errors.exception.message", b"not JSON"),
        ],
    )
    (letter,) = lab.dlq("orders").peek()
    assert (letter.error_type, letter.error) == ("org.apache.kafka.connect.errors.DataException", "not JSON")
    assert letter.original == {"topic": "orders", "partition": 0, "offset": 42, "connector": "sink", "stage": "VALUE_CONVERTER"}


def test_a_letter_that_says_nothing_is_a_letter(lab):
    stored(lab, b"?", [("kafka_dlt-original-offset", b"short"), ("x-unpoison-letter", b"not JSON")])
    stored(lab, None, [])
    spring, bare = lab.dlq("orders").peek()
    assert (spring.body, spring.original, bare.body) == (b"?", {}, b"")
    assert bare.rule == "something else than unpoison put it here"


def stored(lab, body, headers):
    lab.broker("orders")
    where = address(lab.url)
    producer = Producer(where.options)
    producer.produce(f"{where.prefix}orders.dlq", body, b"key", headers=headers)
    producer.flush()
