"""A queue that was there before and would lose messages keeps its consumer from starting, until somebody accepts that by name."""

import json
from contextlib import closing

import pika
import psycopg
import pytest
import redis as redis_client
from confluent_kafka.admin import NewTopic

from tests.contract.kafka_lab import KafkaLab
from tests.contract.sqs_lab import SQSLab
from unpoison import App
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.url import address as kafka_address
from unpoison.brokers.nats.connection import Connection as NATSConnection
from unpoison.brokers.nats.url import address as nats_address
from unpoison.errors import ConfigError
from unpoison.testing import given
from unpoison.testing.running import drained


def assert_starts_only_if_accepted(url, name, part, fix, caplog):
    seen = []
    with pytest.raises(ConfigError) as refused:
        drained(given.consumer(App(url), "orders", seen.append))
    said = str(refused.value)
    assert said.startswith("Consumer 'orders' does not start: existing settings would lose its messages.")
    assert f"\n  {name}: " in said
    assert part in said
    assert fix in said
    assert f"App(…, accept=['{name}']), or UNPOISON_ACCEPT={name}" in said
    with closing(App(url, accept=[name])) as app:
        app.publish("orders", 1)
        drained(given.consumer(app, "orders", seen.append))
    assert seen == [1]
    assert part in caplog.text


@pytest.mark.parametrize(
    ("name", "part", "declared"),
    [
        ("queue-not-durable", "durable", {"durable": False}),
        ("queue-auto-delete", "auto_delete", {"durable": True, "auto_delete": True}),
        ("queue-expires", "x-expires", {"durable": True, "arguments": {"x-expires": 3_600_000}}),
        ("messages-expire", "x-message-ttl", {"durable": True, "arguments": {"x-message-ttl": 3_600_000}}),
    ],
)
def test_a_queue_of_rabbitmq(rabbitmq, caplog, name, part, declared):
    """As AMQP alone tells it."""
    url = rabbitmq.fresh() + "?management=http://127.0.0.1:1"
    parameters = pika.URLParameters(url.partition("?")[0])
    with closing(pika.BlockingConnection(parameters)) as connection:
        connection.channel().queue_declare("orders", **declared)
    assert_starts_only_if_accepted(url, name, part, "delete it, start again", caplog)


def test_a_policy_of_rabbitmq(vhost, caplog):
    """Which only the management API tells."""
    vhost.run_once()
    vhost.policy("^orders$", {"message-ttl": 3_600_000})
    assert_starts_only_if_accepted(vhost.url, "messages-expire", "the policy 'broad'", "rabbitmqctl", caplog)


def test_a_stream_of_nats(nats, caplog):
    url = nats.fresh()
    with closing(NATSConnection(nats_address(url))) as link:
        link.ask("STREAM.CREATE.shop", {"name": "shop", "subjects": ["orders"], "storage": "memory"})
        assert_starts_only_if_accepted(url, "stream-in-memory", "kept in memory", "nats stream backup shop", caplog)


def test_a_topic_of_kafka(kafka, tmp_path, caplog):
    with KafkaLab(kafka, tmp_path) as lab:
        connection = Connection(kafka_address(lab.url))
        topic = connection.names("orders").topic
        for answer in connection.queries.admin.create_topics(
            [NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]
        ).values():
            answer.result(10)
        assert_refused_until_accepted_on_kafka(lab.url, topic, caplog)


def assert_refused_until_accepted_on_kafka(url, topic, caplog):
    """A compacted topic takes no message without a key."""
    with pytest.raises(ConfigError, match="source-compacted"):
        drained(given.consumer(App(url), "orders", print))
    seen = []
    with closing(App(url, accept=["source-compacted"])) as app:
        app.publish("orders", 1, key="ada")
        drained(given.consumer(app, "orders", seen.append))
    assert seen == [1]
    assert f"Topic {topic!r} is compacted" in caplog.text


def test_a_queue_of_sqs(moto, tmp_path, caplog):
    with SQSLab(moto, tmp_path) as lab:
        lab.broker("orders")
        arn = lab.queue("orders-dlq").attributes()["QueueArn"]
        lab.queue("orders").change(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
        assert_starts_only_if_accepted(lab.url, "redrive-too-low", "after 3 receives", "aws sqs set-queue-attributes", caplog)


def test_a_key_of_redis(redis, caplog):
    url = redis.fresh()
    with closing(App(url)) as app, closing(redis_client.Redis.from_url(url)) as client:
        app.publish("orders", 0)
        drained(given.consumer(app, "orders", print))
        client.xadd("dlq:orders", {"x": "1"})
        client.expire("dlq:orders", 3600)
        assert_starts_only_if_accepted(url, "key-expires", "'dlq:orders'", "PERSIST dlq:orders", caplog)


def test_tables_of_postgresql(postgresql, caplog):
    url = postgresql.fresh()
    with closing(App(url)) as app:
        app.publish("orders", 0)
        drained(given.consumer(app, "orders", print))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter table unpoison_line set unlogged")
    assert_starts_only_if_accepted(url, "unlogged-tables", "unpoison_line", "alter table unpoison_line set logged;", caplog)
