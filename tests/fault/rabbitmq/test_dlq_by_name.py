"""A DLQ of any name: that of a source, and one that others own."""

from contextlib import closing

import pika
import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.fault.rabbitmq.test_foreign_letters import publish, taken, waiting
from tests.fault.scenes import collected, letters_in_store
from unpoison.brokers import foreign_dlq, url_with_dlq
from unpoison.errors import CapabilityError, ConfigError, PayloadError, Permanent
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained


@pytest.fixture
def raw(raw):
    raw.confirm_delivery()
    return raw


def failing(payload: bytes) -> None:
    raise Permanent("no")


def rejected(raw, queue, *bodies, into="parking", **arguments):
    """Messages that RabbitMQ has dead-lettered from a queue of others into another one of theirs."""
    raw.queue_declare(into, durable=True, arguments=arguments)
    to_there = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": into}
    raw.queue_declare(queue, durable=True, arguments=to_there)
    for body in bodies:
        publish(raw, queue, body, message_id=body.decode())
        raw.basic_nack(raw.basic_get(queue)[0].delivery_tag, requeue=False)
    wait_until(lambda: waiting(raw, into) >= len(bodies), lambda: "They did not arrive")


def test_a_source_has_its_letters_in_the_dlq_that_is_named(lab, raw):
    app = lab.app()
    app.consumer("orders", dlq="orders.DLT", isolation="inline")(failing)
    app.publish("orders", b"1")
    drained(app)
    assert waiting(raw, "orders.DLT") == 1
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        raw.connection.channel().queue_declare("orders.dlq", passive=True)
    dlq = app.dlq("orders")
    assert [letter.body for letter in dlq.peek()] == [b"1"]
    assert dlq.replay_one()
    assert (dlq.count(), lab.broker("orders").depth("orders").ready) == (0, 1)
    with pytest.raises(ConfigError, match="--source orders"):
        foreign_dlq(app.settings.url, "orders.DLT")


def test_a_queue_that_was_there_is_used_as_it_is(lab, raw):
    raw.queue_declare("orders.DLT", durable=True, arguments={"x-max-length": 7})
    app = lab.app()
    app.consumer("orders", dlq="orders.DLT", isolation="inline")(failing)
    app.publish("orders", b"1")
    drained(app)
    assert waiting(raw, "orders.DLT") == 1
    assert app.dlq("orders").count() == 1


def test_letters_in_a_queue_of_others_are_shown_and_go_back_to_where_they_came_from(lab, raw):
    rejected(raw, "mail", b"1", b"2")
    rejected(raw, "orders", b"3")
    letters = foreign_dlq(lab.url, "parking")
    assert [(each.source, each.body) for each in letters.browse()] == [("mail", b"1"), ("mail", b"2"), ("orders", b"3")]
    assert letters.count() == 3
    ids = [each.id for each in letters.browse()]
    with pytest.raises(CapabilityError, match="move the letters into a store"):
        letters.remove(ids[:1], keep_as="discarded")
    assert letters.replay([ids[0], ids[2]]) == [ids[0], ids[2]]
    assert letters.remove([ids[1]]) == [ids[1]]
    assert [taken(raw, queue)[0] for queue in ("mail", "orders")] == [b"1", b"3"]
    assert (letters.count(), waiting(raw, "parking"), waiting(raw, "mail")) == (0, 0, 0)
    letters.broker.close()


def test_a_letter_that_does_not_say_where_it_came_from_stays(lab, raw):
    raw.queue_declare("parking", durable=True)
    publish(raw, "parking", b"lost")
    letters = foreign_dlq(lab.url, "parking")
    (letter,) = letters.browse()
    assert letter.source == "parking"
    with pytest.raises(PayloadError, match="does not say where it came from"):
        letters.replay([letter.id])
    assert letters.count() == 1
    letters.broker.close()


def test_letters_of_others_are_collected_under_their_sources_and_sent_back_from_the_store(lab, raw):
    rejected(raw, "mail", b"1", b"2")
    rejected(raw, "orders", b"3")
    publish(raw, "parking", b"lost")
    with letters_in_store(lab, "parking") as letters:
        assert sorted((each.source, each.body) for each in letters.browse()) == [
            ("mail", b"1"),
            ("mail", b"2"),
            ("orders", b"3"),
            ("parking", b"lost"),
        ]
        assert (waiting(raw, "parking"), letters.count()) == (0, 4)
        ids = [each.id for each in letters.browse() if each.body != b"lost"]
        assert sorted(letters.replay(ids)) == sorted(ids)
        with pytest.raises(PayloadError, match="does not say where it came from"):
            letters.replay([each.id for each in letters.browse()])
        assert (letters.count(), letters.count("replayed")) == (1, 3)
    assert [taken(raw, queue)[0] for queue in ("mail", "mail", "orders")] == [b"1", b"2", b"3"]
    assert collected(lab, "parking").moved == 0


def test_letters_of_unpoison_that_another_tool_has_moved_go_to_their_source(lab, raw):
    given.dead_letters(lab, "orders", [b"1"])
    raw.queue_declare("parking", durable=True)
    _, properties, body = raw.basic_get("orders.dlq", auto_ack=True)
    raw.basic_publish("", "parking", body, properties)
    with letters_in_store(lab, "parking") as letters:
        (letter,) = letters.browse()
        assert (letter.source, letter.body) == ("orders", b"1")
        assert letters.replay([letter.id])
    (delivery,) = lab.broker("orders").fetch("orders", 1)
    assert (delivery.body, delivery.counters.replays) == (b"1", 1)


@pytest.mark.parametrize("arguments", [{"x-delivery-limit": 3}, {}], ids=["limited", "default"])
def test_a_queue_where_looking_deletes_letters_is_refused_unless_that_is_accepted(lab, raw, arguments, rabbitmq):
    raw.queue_declare("limited", durable=True, arguments={"x-queue-type": "quorum", **arguments})
    publish(raw, "limited", b"1")
    url = f"{lab.url}?management={rabbitmq.http_url}"
    is_limited = bool(arguments) or rabbitmq_version(lab) >= (4, 0)
    for each in (url, f"{lab.url}?management=http://127.0.0.1:9") if is_limited else ():
        with pytest.raises(ConfigError, match="delivery limit") as refused:
            foreign_dlq(each, "limited")
        assert "--accept delivery-limit" in str(refused.value)
    assert waiting(raw, "limited") == 1
    letters = foreign_dlq(url, "limited", ["delivery-limit"])
    assert [each.body for each in letters.browse()] == [b"1"]
    letters.broker.close()


def rabbitmq_version(lab):
    return lab.broker().connections.topology().connection.version[:2]


def test_a_classic_queue_counts_nothing_and_is_known_by_amqp_alone(lab, raw):
    raw.queue_declare("classic", durable=True)
    publish(raw, "classic", b"1")
    letters = foreign_dlq(f"{lab.url}?management=http://127.0.0.1:9", "classic")
    for _ in range(25):
        assert [each.body for each in letters.browse()] == [b"1"]
    letters.broker.close()


def test_what_is_not_there_is_not_made(lab, raw):
    with pytest.raises(ConfigError, match="There is no queue 'parking'"):
        foreign_dlq(lab.url, "parking")
    with pytest.raises(ConfigError, match="There is no danger 'all' to accept"):
        foreign_dlq(lab.url, "parking", ["all"])
    with pytest.raises(ConfigError, match="cannot be a RabbitMQ queue"):
        url_with_dlq(lab.url, "orders", "amq.letters")


@pytest.mark.long
@pytest.mark.servers("rabbitmq-4")
def test_on_rabbitmq_4_a_look_may_delete_a_letter_and_collecting_saves_it(rabbitmq_4, tmp_path):
    """It was given up at the default limit of its queue, and brought its count along."""
    with RabbitMQLab(rabbitmq_4, tmp_path) as lab, closing(pika.BlockingConnection(pika.URLParameters(lab.url))) as connection:
        raw = connection.channel()
        raw.confirm_delivery()
        raw.queue_declare("grave", durable=True, arguments={"x-queue-type": "quorum"})
        to_there = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
        raw.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum", **to_there})
        given_up(raw, b"1")
        with pytest.raises(ConfigError, match=r"(has|may have) a delivery limit"):
            foreign_dlq(lab.url, "grave")
        assert collected(lab, "grave", "delivery-limit").new == 1
        given_up(raw, b"2")
        letters = foreign_dlq(lab.url, "grave", ["delivery-limit"])
        assert [(each.source, each.body) for each in letters.browse()] == [("orders", b"2")]
        letters.broker.close()
        wait_until(lambda: waiting(raw, "grave") == 0, lambda: "It is still there: looking did no harm")


def given_up(raw, body):
    publish(raw, "orders", body)
    for _ in range(21):
        wait_until(lambda: waiting(raw, "orders") == 1, lambda: "It did not come back")
        raw.basic_reject(raw.basic_get("orders")[0].delivery_tag, requeue=True)
    wait_until(lambda: waiting(raw, "grave") == 1, lambda: "It was not given up")
