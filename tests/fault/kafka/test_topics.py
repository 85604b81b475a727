"""Topics are missing, deleted and made again: nothing is made behind anybody's back, nothing is skipped, and it is said."""

from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from tests.contract.kafka_lab import KafkaLab
from unpoison.app import App
from unpoison.brokers.kafka import topology
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address
from unpoison.errors import ConfigError, Permanent, PublishFailed
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained


@pytest.fixture
def lab(tmp_path, kafka, monkeypatch):
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.1,))
    with KafkaLab(kafka, tmp_path) as lab:
        lab.url += "&delivery.timeout.ms=1500&request.timeout.ms=1000"  # after which a record that no topic takes is given up
        yield lab


@pytest.fixture
def admin(lab):
    """Somebody with Kafka's own tools. The server makes topics that clients ask about, as it does by default."""
    connection = Connection(address(lab.url))
    (setting,) = connection.queries.admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    assert setting.result(10)["auto.create.topics.enable"].value == "true"
    yield Admin(connection)
    connection.close()


class Admin:
    def __init__(self, connection):
        self.connection, self.names = connection, connection.names("orders")

    def topics(self):
        return {name for name in self.connection.queries.cluster().topics if name.startswith(self.connection.address.prefix)}

    def delete(self, *topics):
        for answer in self.connection.queries.admin.delete_topics(list(topics)).values():
            answer.result(10)
        wait_until(lambda: not self.topics() & set(topics), lambda: f"{self.topics()} are there")

    def make(self, *topics, **changed):
        wanted = topology.planned_topics(self.names, self.connection.address)
        for answer in self.connection.queries.admin.create_topics([changed.get(name, wanted[name]) for name in topics]).values():
            answer.result(10)
        wait_until(lambda: set(topics) <= self.topics(), lambda: f"{self.topics()} are there")

    def setting(self, topic, name):
        (found,) = self.connection.queries.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return found.result(10)[name].value


def refuse(number: int) -> None:
    if number < 0:
        raise Permanent("negative")


def test_a_consumer_that_may_make_nothing_names_every_topic_that_is_missing(lab, admin):
    admin.make(admin.names.topic)
    app = given.consumer(lab.app(create=False), "orders", refuse, isolation="thread")
    with pytest.raises(ConfigError) as raised, Running(app) as running:
        running.wait()
    missing = (admin.names.retry, admin.names.dlq, admin.names.states)
    for name in missing:
        assert f"'{name}'" in str(raised.value)
        assert f"--create --topic {name} " in str(raised.value)
    assert "retention.ms=-1" in str(raised.value)
    assert admin.topics() == {admin.names.topic}
    admin.make(*missing)
    app.publish("orders", -1)
    drained(app)
    assert [letter.body for letter in lab.dlq("orders").peek()] == [b"-1"]


def test_a_dlq_that_is_deleted_in_the_middle_is_made_again_as_it_must_be(lab, admin):
    app = given.consumer(lab.app(), "orders", refuse, isolation="thread")
    app.publish("orders", -1)
    with Journal() as journal, Running(app):
        journal.wait_for("dead")
        admin.delete(admin.names.dlq)
        journal.wait_for("topic-made")
        app.publish("orders", -2)
        wait_until(lambda: len(journal.of("dead")) == 2, lambda: str(journal.of("dead")))
    assert [letter.body for letter in lab.dlq("orders").peek()] == [b"-2"]
    assert {admin.setting(admin.names.dlq, name) for name in ("retention.ms", "retention.bytes")} == {"-1"}
    (line,) = journal.of("topic-made")
    assert f"topic '{admin.names.dlq}' was deleted, and the dead letters in it are lost" in line


def test_without_the_right_to_make_it_a_deleted_dlq_pauses_the_source_until_it_is_there(lab, admin):
    admin.make(*admin.names.topics)
    handled: list[int] = []

    def handle(number: int) -> None:
        refuse(number)
        handled.append(number)

    app = given.consumer(lab.app(create=False), "orders", handle, isolation="thread")
    app.publish("orders", 1)
    with Journal() as journal, Running(app):
        wait_until(lambda: handled == [1], lambda: f"{handled} were handled")
        admin.delete(admin.names.dlq, admin.names.states)
        journal.wait_for("pause")
        app.publish_many("orders", [-1, 2])
        missing = {admin.names.dlq, admin.names.states}
        assert not admin.topics() & missing
        admin.make(*missing)
        journal.wait_for("resume")
        wait_until(lambda: handled == [1, 2] and journal.of("dead"), lambda: f"{handled} were handled")
    (line,) = journal.of("pause")
    assert all(f"--create --topic {name} " in line for name in missing)
    assert journal.of("topic-made") == []
    assert [letter.attempts for letter in lab.dlq("orders").peek()] == [1]


def test_a_dlq_that_somebody_else_makes_again_with_the_settings_of_the_server_is_told(lab, admin):
    app = given.consumer(lab.app(), "orders", refuse, isolation="thread")
    app.publish("orders", -1)
    with Journal() as journal, Running(app):
        journal.wait_for("dead")
        admin.delete(admin.names.dlq)
        admin.make(admin.names.dlq, **{admin.names.dlq: NewTopic(admin.names.dlq, 1, 1)})
        journal.wait_for("finding")
    (line,) = journal.of("finding")
    assert f"Topic '{admin.names.dlq}' has retention.ms=604800000" in line
    assert f"--entity-name {admin.names.dlq} --add-config" in line


def test_looking_at_dead_letters_makes_nothing_that_is_forbidden(lab, admin):
    admin.make(admin.names.topic)
    assert lab.app(create=False).dlq("orders").count() == 0
    assert admin.topics() == {admin.names.topic}


def test_what_fails_in_the_moment_in_which_the_dlq_is_deleted_becomes_a_letter_all_the_same(lab, admin):
    deleted: list[str] = []

    def handle(number: int) -> None:
        if not deleted:
            admin.delete(admin.names.dlq)
            deleted.append(admin.names.dlq)
        raise Permanent("no")

    app = given.consumer(lab.app(), "orders", handle, isolation="thread")
    app.publish("orders", 1)
    drained(app)
    assert [letter.body for letter in lab.dlq("orders").peek()] == [b"1"]
    assert admin.setting(admin.names.dlq, "retention.ms") == "-1"


@contextmanager
def consuming_a_topic_that_is_deleted(lab, admin):
    """Ten messages were handled; then the topic is deleted. Gives what is handled, and what is logged."""
    handled: list[int] = []
    app = given.consumer(lab.app(), "orders", handled.append, schema=int, isolation="thread")
    app.publish_many("orders", range(10))
    with Journal() as journal, Running(app):
        wait_until(lambda: len(handled) == 10, lambda: f"{handled} were handled")
        admin.delete(admin.names.topic)
        yield handled, journal


def test_a_source_that_is_deleted_and_made_again_is_consumed_from_its_first_message(lab, admin):
    with consuming_a_topic_that_is_deleted(lab, admin) as (handled, journal):
        journal.wait_for("pause")
        assert admin.names.topic not in admin.topics()
        admin.make(admin.names.topic)
        App(lab.url).publish_many("orders", range(100, 115))
        wait_until(lambda: len(handled) == 25, lambda: f"{handled} were handled")
    assert sorted(handled[10:]) == list(range(100, 115))
    (pause,) = journal.of("pause")
    assert "the source was deleted" in pause
    assert len(journal.of("topic-made-again")) == len(journal.of("resume")) == 1


def test_a_source_that_is_made_again_at_once_loses_nothing_though_old_offsets_are_committed_for_it(lab, admin):
    with consuming_a_topic_that_is_deleted(lab, admin) as (handled, journal):
        admin.make(admin.names.topic, **{admin.names.topic: NewTopic(admin.names.topic, 2, 1)})
        App(lab.url).publish_many("orders", range(100, 115))
        wait_until(lambda: set(range(100, 115)) <= set(handled), lambda: f"{handled} were handled")
        assert len(journal.of("topic-made-again")) == 1


def test_a_source_that_is_made_again_in_a_pause_is_consumed_from_its_first_message_after_the_pause(lab, admin):
    broker, found = lab.broker("orders", ring=lambda: None), []

    def came(count, at_once=10):
        found.extend(broker.fetch("orders", at_once))
        return len(found) >= count

    given.publish(broker, given.messages("orders", 3))
    wait_until(lambda: came(3), lambda: str(found))
    broker.settle(Settlement(gone=found))
    broker.pause("orders")
    partitions = broker._subscriptions["orders"].main.assignment.partitions
    admin.delete(admin.names.topic)
    wait_until(lambda: not partitions, lambda: "It has the old one")
    admin.make(admin.names.topic)
    given.publish(lab.broker("orders"), given.messages("orders", 3, first=100))
    wait_until(lambda: partitions and partitions[0].pauses, lambda: "It has not got the new one, or reads it")
    wait_until(lambda: came(4, at_once=1), lambda: "No probe")
    broker.settle(Settlement(gone=found[3:]))
    broker.resume("orders")
    wait_until(lambda: came(6), lambda: str(found))
    assert [each.body for each in found[3:]] == [b"100", b"101", b"102"]
    assert not any(each.returned for each in found)


def test_what_was_committed_for_a_deleted_topic_says_nothing_about_the_one_that_has_its_name(lab, admin):
    """A commit that was on its way then is stored for the new one, as if it had been made for it."""
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 3))
    source = broker._subscription("orders")
    wait_until(lambda: broker.fetch("orders", 1), lambda: "Nothing came")
    place = source.main.assignment.partitions[0].to_commit((2, "unpoison/1 "))
    broker.close()
    admin.delete(admin.names.topic)
    admin.make(admin.names.topic)
    other = lab.broker("orders")
    other.publish(given.messages("orders", 3, first=10))
    client = other.connection.queries._offsets._client(admin.names.group)
    client.commit(offsets=[place], asynchronous=False)
    came: list[bytes] = []
    wait_until(lambda: came.extend(each.body for each in other.fetch("orders", 10)) or len(came) == 3, lambda: str(came))
    assert came == [b"10", b"11", b"12"]


def test_what_runs_while_its_topic_is_deleted_is_retried_or_a_letter_as_ever(lab, admin):
    seen: list[tuple[int, int]] = []

    def handle(number: int, delivery: Delivery) -> None:
        if not seen:
            admin.delete(admin.names.topic)
            journal.wait_for("pause")
        seen.append((number, delivery.attempt))
        if delivery.attempt == 1:
            raise ConnectionError("not now")
        raise Permanent("never")

    app = given.consumer(lab.app(), "orders", handle, isolation="thread", concurrency=1, backoff=Backoff.immediate())
    app.publish("orders", 7)
    with Journal() as journal, Running(app):
        wait_until(lambda: journal.of("retry"), lambda: str(seen))
        admin.make(admin.names.topic)
        wait_until(lambda: journal.of("dead"), lambda: str(seen))
    assert seen == [(7, 1), (7, 2)]
    assert [letter.attempts for letter in lab.dlq("orders").peek()] == [2]


def test_publishing_to_a_topic_that_was_deleted_is_refused_and_makes_none(lab, admin):
    app = lab.app()
    app.publish("orders", 1)
    admin.delete(admin.names.topic)
    with pytest.raises(PublishFailed, match=r"there is no topic '.*orders'"):
        app.publish("orders", 2)
    assert admin.names.topic not in admin.topics()


def test_no_client_of_ours_has_a_server_make_a_topic(lab, admin):
    broker = lab.broker()
    strange = f"{admin.connection.address.prefix}strange"
    for client in (broker.connection.producer, broker.connection.queries.admin, broker.reader._consumer):
        client.list_topics(strange, timeout=10)
    broker.connection.producer.produce(strange, b"1")
    broker.connection.producer.flush(1)
    with pytest.raises(KafkaException):
        broker.connection.queries.admin.describe_topics(TopicCollection([strange]))[strange].result(10)
    assert admin.topics() == set()
