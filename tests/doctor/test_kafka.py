"""Each finding about Kafka: the server that has it, and the same one after the fix that is told."""

import json
import re

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from tests.contract.kafka_lab import KafkaLab
from unpoison.brokers import checks_for, findings_for
from unpoison.brokers.kafka import doctor
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address
from unpoison.errors import BrokerUnavailable
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, drained


@pytest.fixture
def lab(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path) as lab:
        yield lab


@pytest.fixture
def names(lab):
    return lab.broker("orders").connection.names("orders")


def found(lab, *sources):
    return {each.name: each for each in findings_for(lab.url, sources)}


def soon(lab, name=None, *sources):
    """The findings once this one is among them, or once there are none: servers learn of a change a moment later."""
    seen = [found(lab, *sources)]
    wait_until(lambda: seen.append(found(lab, *sources)) or (name in seen[-1] if name else not seen[-1]), lambda: str(seen[-1]))
    return seen[-1]


def alter(lab, topic, **settings):
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    for answer in lab.broker("orders").connection.queries.admin.incremental_alter_configs([resource]).values():
        answer.result(10)


def test_a_source_that_unpoison_made_is_in_order_and_looking_changes_nothing(lab, names):
    lab.app().publish_many("orders", range(3))
    assert found(lab) == {}
    assert found(lab, "orders") == {}
    broker = lab.broker("orders")
    assert broker.connection.queries.members(names.group) == set()
    assert broker.depth("orders").ready == 3


def test_a_source_that_nobody_has_used_is_told_until_somebody_does(lab, names):
    assert list(found(lab, "ordres")) == ["source-missing"]
    lab.app().publish("ordres", 1)
    assert soon(lab, None, "ordres") == {}


@pytest.mark.parametrize(
    ("topic", "broken", "name", "loses"),
    [
        ("topic", {"cleanup.policy": "compact"}, "source-compacted", True),
        ("retry", {"retention.ms": "3600000"}, "retries-expire", True),
        ("dlq", {"retention.bytes": "1000000"}, "retries-expire", True),
        ("states", {"cleanup.policy": "compact,delete"}, "states-expire", True),
        ("dlq", {"unclean.leader.election.enable": "true"}, "unclean-election", True),
        ("dlq", {"max.message.bytes": "1000000"}, "dlq-smaller", False),
        ("retry", {"message.timestamp.type": "CreateTime"}, "clocks-of-clients", False),
    ],
)
def test_a_topic_that_is_set_up_badly_is_told_until_it_is_mended(lab, names, topic, broken, name, loses):
    place = getattr(names, topic)
    alter(lab, place, **broken)
    finding = soon(lab, name)[name]
    assert finding.loses is loses
    assert repr(place) in finding.problem
    told = re.search(r"--entity-name (\S+) --add-config (\S+)", finding.fix)
    assert told is not None
    assert told[1] == place
    alter(lab, place, **dict(each.split("=") for each in told[2].split(",")))
    assert soon(lab) == {}


def test_a_topic_that_is_missing_is_told_until_a_consumer_starts(lab, names):
    admin = lab.broker("orders").connection.queries.admin
    for answer in admin.delete_topics([names.states]).values():
        answer.result(10)
    wait_until(lambda: names.states not in admin.list_topics(timeout=10).topics, lambda: "The server still lists it")
    assert soon(lab, "topics-missing")
    lab.broker("orders")
    assert soon(lab) == {}


@pytest.fixture
def adopted(lab):
    """A topic that somebody made and filled before unpoison came."""
    connection = Connection(address(lab.url))
    names = connection.names("orders")
    for answer in connection.queries.admin.create_topics(
        [NewTopic(names.topic, 2, 1, config={"cleanup.policy": "compact"})]
    ).values():
        answer.result(10)
    producer = Producer(connection.address.options)
    for number in range(3):
        producer.produce(names.topic, b"1", str(number).encode())
    producer.flush()
    yield names
    connection.close()


@pytest.mark.parametrize("group", ["&group=unpoison", ""])
def test_a_topic_that_unpoison_has_not_used_yet_is_looked_at_and_left_as_it_is(lab, adopted, group):
    lab.url = lab.url.replace("&group=unpoison", group)
    seen = soon(lab, "source-compacted", "orders")
    assert list(seen) == ["topics-missing", "source-compacted"]
    missing = seen["topics-missing"]
    assert (missing.loses, missing.stops) == (False, False)
    ours = [adopted.retry, adopted.dlq, adopted.states] if group else [adopted.dlq, adopted.states]
    assert [line.split()[5] for line in missing.fix.splitlines()[1:]] == ours
    client = Connection(address(lab.url)).queries.admin
    assert [name for name in client.list_topics(timeout=10).topics if name.startswith(address(lab.url).prefix)] == [adopted.topic]


def test_the_name_that_was_probably_meant_is_told_before_anything_of_ours_is_there(lab, adopted):
    assert "there are: 'orders'" in soon(lab, "source-missing", "order")["source-missing"].problem


def test_topics_that_differ_from_what_would_be_made_are_told_by_a_consumer_that_may_make_nothing(lab, names):
    alter(lab, names.retry, **{"message.timestamp.type": "CreateTime"})
    soon(lab, "clocks-of-clients")
    app = given.consumer(lab.app(create=False), "orders", print)
    with Journal() as journal:
        drained(app)
    (line,) = journal.of("finding")
    assert f"Topic '{names.retry}' has the clients' times" in line


def test_a_retry_topic_with_too_few_partitions_is_told_until_it_has_them(lab):
    connection = lab.broker("others").connection
    small = connection.names("small")
    topics = [NewTopic(each, 1, 1) for each in (small.topic, small.retry, small.dlq, small.states)]
    for answer in connection.queries.admin.create_topics(topics).values():
        answer.result(10)
    told = re.search(r"--topic (\S+) --partitions (\d+)", soon(lab, "few-partitions", "small")["few-partitions"].fix)
    assert told is not None
    for answer in connection.queries.admin.create_partitions([NewPartitions(told[1], int(told[2]))]).values():
        answer.result(10)
    wait_until(lambda: "few-partitions" not in found(lab, "small"), lambda: str(found(lab, "small")))
    lab.broker("small")


def test_many_dead_letters_are_told_until_they_are_gone(lab):
    given.dead_letters(lab, "orders", [b"1"] * 101)
    assert list(found(lab)) == ["many-dead-letters"]
    lab.dlq("orders").purge()
    assert found(lab) == {}


def test_retries_that_are_done_with_are_told_until_they_are_cut_and_nothing_else_is(lab, names, monkeypatch):
    monkeypatch.setattr(doctor, "MANY_SETTLED", 5)
    app, seen = lab.app(), []
    given.consumer(app, "orders", seen.append)
    for number in range(6):
        app.publish("orders", number, delay=0.05)
    drained(app)
    app.publish("orders", "later", delay=3600)
    finding = soon(lab, "settled-retries")["settled-retries"]
    assert "6 records" in finding.problem
    cut(lab, finding)
    assert soon(lab) == {}
    assert lab.broker("orders").depth("orders").delayed == 1


@pytest.mark.long
def test_a_body_that_only_the_retry_topic_has_is_not_cut(lab, names, monkeypatch):
    """The letter of a message that came from there was too large for the DLQ."""
    monkeypatch.setattr(doctor, "MANY_SETTLED", 1)
    app = lab.app()
    given.consumer(app, "orders", reject)
    app.publish("orders", "small", delay=0.05)
    drained(app)
    alter(lab, names.dlq, **{"max.message.bytes": "30000"})
    soon(lab, "dlq-smaller")
    app.publish("orders", "x" * 50_000, delay=0.05)
    drained(app)
    finding = soon(lab, "settled-retries")["settled-retries"]
    assert "1 record " in finding.problem
    cut(lab, finding)
    assert [len(letter.body) for letter in lab.dlq("orders").letters()] == [5, 50_000]


def reject(_: object) -> None:
    raise ValueError("never")


def cut(lab, finding):
    """As it is told."""
    told = json.loads(finding.fix[finding.fix.index("{") :])
    wanted = [TopicPartition(each["topic"], each["partition"], each["offset"]) for each in told["partitions"]]
    for answer in lab.broker("orders").connection.queries.admin.delete_records(wanted).values():
        answer.result(10)


@pytest.mark.long
@pytest.mark.servers("kafka")
def test_a_server_that_forgets_what_groups_committed_is_told(private_server, tmp_path):
    server = private_server("kafka", settings={"offsets.retention.minutes": "60", "offset.metadata.max.bytes": "100"})
    with KafkaLab(server, tmp_path) as lab:
        assert {"offsets-expire", "metadata-too-small"} <= found(lab).keys()
        server.stop()
        server.start({"offsets.retention.minutes": "10080", "offset.metadata.max.bytes": "4096"})
        assert found(lab) == {}


def test_what_is_looked_for_can_be_listed(lab):
    assert "retries-expire" in checks_for(lab.url)


def test_a_server_that_does_not_answer_is_an_error():
    with pytest.raises(BrokerUnavailable, match="looking for topics"):
        findings_for("kafka://127.0.0.1:1")
