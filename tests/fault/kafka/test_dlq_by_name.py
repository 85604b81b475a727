"""A DLQ of any name: that of a source, and one that others own, which is only read."""

import json
import struct

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fault.kafka.test_foreign import BODY, ENVELOPE, records
from tests.fault.scenes import collected, letters_in_store
from unpoison.brokers import foreign_dlq, url_with_dlq
from unpoison.brokers.kafka.url import address
from unpoison.errors import CapabilityError, ConfigError, PayloadError, Permanent
from unpoison.port.broker import close
from unpoison.testing import given
from unpoison.testing.running import drained


def failing(payload: bytes) -> None:
    raise Permanent("no")


@pytest.fixture
def dlt(lab):
    """A topic as Spring makes it, with two partitions, beside a source that unpoison has never seen."""
    where = address(lab.url)
    admin, names = AdminClient(where.options), [f"{where.prefix}orders", f"{where.prefix}orders.DLT"]
    for made in admin.create_topics([NewTopic(names[0], 2, 1), NewTopic(names[1], 2, 1)]).values():
        made.result()
    return names[1]


def written(lab, topic, body, headers=(), partition=0, key=b"key"):
    producer = Producer(address(lab.url).options)
    producer.produce(topic, body, key, partition, headers=list(headers))
    producer.flush()


def spring(lab, partition=1, offset=17, error="java.lang.IllegalStateException"):
    return [
        ("kafka_dlt-original-topic", f"{address(lab.url).prefix}orders".encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", partition)),
        ("kafka_dlt-original-offset", struct.pack(">q", offset)),
        ("kafka_dlt-exception-fqcn", error.encode()),
        ("kafka_dlt-exception-message", b"total is odd"),
        ("trace", b"abc"),
    ]


def connect(lab):
    topic = f"{address(lab.url).prefix}orders".encode()
    prefix = "__connect.errors."
    return [
        (f"{prefix}topic", topic),
        (f"{prefix}partition", b"0"),
        (f"{prefix}offset", b"4"),
        (f"{prefix}stage", b"TRANSFORMATION"),
    ]


def test_a_source_has_its_letters_in_the_topic_that_is_named(lab):
    app = lab.app()
    app.consumer("orders", dlq="orders.DLT", isolation="inline")(failing)
    app.publish("orders", b"1", key="k")
    drained(app)
    where = address(lab.url)
    topics = AdminClient(where.options).list_topics(timeout=10).topics
    assert f"{where.prefix}orders.DLT" in topics
    assert f"{where.prefix}orders.dlq" not in topics
    dlq = app.dlq("orders")
    assert [(letter.id, letter.body) for letter in dlq.peek()] == [("orders.DLT-0", b"1")]
    assert dlq.replay_one()
    assert dlq.count() == 0
    with pytest.raises(ConfigError, match="--source orders"):
        foreign_dlq(app.settings.url, f"{where.prefix}orders.DLT")


def test_letters_of_spring_and_connect_are_shown_and_nothing_is_changed(lab, dlt):
    written(lab, dlt, b"1", spring(lab))
    written(lab, dlt, b"2", connect(lab), partition=1)
    written(lab, dlt, json.dumps(ENVELOPE).encode(), partition=1)
    letters, source = foreign_dlq(lab.url, dlt), f"{address(lab.url).prefix}orders"
    shown = letters.browse()
    assert [(each.source, each.body) for each in shown] == [(source, b"1"), (source, b"2"), ("orders", BODY)]
    assert [each.error_type for each in shown][::2] == ["java.lang.IllegalStateException", "ValueError"]
    assert [each.id for each in shown] == [f"{dlt}-0", f"{dlt}-1.0", f"{dlt}-1.1"]
    assert letters.browse(only=shown[1].id) == [shown[1]]
    assert letters.browse(after=shown[0].id, limit=1) == [shown[1]]
    assert letters.browse(until=letters.freeze()) == shown
    assert (letters.count(), letters.count("replayed")) == (3, 0)
    for change in (letters.replay, letters.remove):
        with pytest.raises(CapabilityError, match="can only be looked at"):
            change([shown[0].id])
    close(letters)
    assert not [
        name for name in AdminClient(address(lab.url).options).list_topics(timeout=10).topics if name.startswith(f"{dlt}.")
    ]


def test_collected_letters_are_not_collected_again_and_a_new_one_is(lab, dlt):
    written(lab, dlt, b"1", spring(lab))
    written(lab, dlt, b"2", connect(lab), partition=1)
    assert collected(lab, dlt).new == 2
    assert (collected(lab, dlt).moved, foreign_dlq(lab.url, dlt).count()) == (0, 0)
    written(lab, dlt, b"3", spring(lab, offset=18))
    found = collected(lab, dlt)
    assert (found.new, found.known) == (1, 0)
    with letters_in_store(lab, dlt) as letters:
        assert sorted(each.body for each in letters.browse()) == [b"1", b"2", b"3"]
        assert (letters.count(), letters.store.counts_at(dlt)) == (3, {"dead": 3})
        (spring_group, *_) = letters.groups(None)
        assert (spring_group.count, spring_group.sources) == (2, {f"{address(lab.url).prefix}orders": 2})


def test_a_letter_is_sent_back_from_the_store_to_where_it_came_from(lab, dlt):
    written(lab, dlt, b"1", spring(lab))
    written(lab, dlt, b"lost")
    with letters_in_store(lab, dlt) as letters:
        known = {each.body: each for each in letters.browse()}
        assert known[b"lost"].source == dlt
        assert letters.replay([known[b"1"].id])
        with pytest.raises(PayloadError, match="does not say where it came from"):
            letters.replay([known[b"lost"].id])
        assert (letters.count(), letters.count("replayed")) == (1, 1)
    (sent,) = records(lab, "orders")
    assert sent[:2] == (b"1", b"key")


def test_a_collector_that_is_killed_before_it_commits_makes_no_letter_double(lab, dlt, monkeypatch):
    for number in range(5):
        written(lab, dlt, str(number).encode(), spring(lab, offset=number))

    def killed(self, letter_ids):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr("unpoison.brokers.kafka.foreign_dlq.ForeignDLQ.collected", killed)
        with pytest.raises(SystemExit):
            collected(lab, dlt)
    found = collected(lab, dlt)
    assert (found.new, found.known, found.duplicates) == (0, 5, 0)
    assert foreign_dlq(lab.url, dlt).count() == 0


def test_letters_of_our_own_dlq_that_were_collected_are_noted_as_that(lab):
    given.dead_letters(lab, "orders", [b"1", b"2"])
    letters = lab.letters("orders")
    ids = letters.ids()
    letters.collected(ids[:1])
    assert (letters.count(), letters.count("collected"), letters.count("purged")) == (1, 1, 0)
    assert [each.id for each in letters.browse(state=None)] == ids[1:]
    assert letters.replay(ids) == ids[1:]


def test_names_that_no_topic_can_have_are_refused(lab):
    for name in ("orders dlt", "..", "x" * 250, "orders"):
        with pytest.raises(ConfigError, match=r"cannot be|would share"):
            url_with_dlq(lab.url, "orders", name)
    with pytest.raises(ConfigError, match="There is no topic 'nowhere'"):
        foreign_dlq(lab.url, "nowhere")
