"""The classifier beside what real RabbitMQ and NATS servers answer to pika, kombu and nats-py."""

import asyncio
import contextlib
from urllib.parse import urlsplit

import amqp.exceptions
import nats as nats_py
import nats.js.errors as jetstream_errors
import pika
import pika.exceptions
from kombu.connection import Connection
from kombu.messaging import Producer

from tests.unit.classifying import PERMANENT, TRANSIENT, check, raised


def with_wrong_password(url):
    parts = urlsplit(url)
    return url.replace(f"{parts.username}:{parts.password}@", "guest:wrong@")


def with_pika(url, action):
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        action(connection.channel())


def publish_to_nobody(channel):
    channel.confirm_delivery()
    channel.basic_publish("", "nobody", b"x", mandatory=True)


def test_what_rabbitmq_answers_to_pika(rabbitmq):
    url = rabbitmq.fresh()
    missing = raised(with_pika, url, lambda channel: channel.queue_declare("nobody", passive=True))
    assert isinstance(missing, pika.exceptions.ChannelClosedByBroker)
    check(missing, PERMANENT)
    unroutable = raised(with_pika, url, publish_to_nobody)
    assert isinstance(unroutable, pika.exceptions.UnroutableError)
    check(unroutable, PERMANENT)
    refused = raised(with_pika, with_wrong_password(url), publish_to_nobody)
    assert isinstance(refused, pika.exceptions.AMQPConnectionError)
    check(refused, TRANSIENT)


def with_kombu(url, action):
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        action(connection)


def publish_to_missing_exchange(connection):
    Producer(connection).publish({"id": 1}, exchange="nowhere", routing_key="x", retry=True, retry_policy={"max_retries": 1})


def declare_otherwise(connection):
    for durable in (True, False):
        connection.default_channel.queue_declare("orders", durable=durable, auto_delete=False)


def test_what_rabbitmq_answers_to_kombu(rabbitmq):
    url = rabbitmq.fresh()
    missing = raised(with_kombu, url, publish_to_missing_exchange)
    assert isinstance(missing, amqp.exceptions.NotFound)
    check(missing, PERMANENT)
    check(raised(with_kombu, url, declare_otherwise), PERMANENT)
    refused = raised(with_kombu, with_wrong_password(url), lambda connection: connection.connect())
    assert isinstance(refused, amqp.exceptions.AccessRefused), "its code alone would be permanent"
    check(refused, TRANSIENT)


def test_what_nats_answers_to_nats_py(nats):
    url = nats.fresh()

    async def ask(action):
        client = await nats_py.connect(url)
        try:
            await action(client.jetstream())
        finally:
            await client.close()

    async def publish_to_nobody(jetstream):
        await jetstream.publish("nobody.listens", b"x")

    async def publish_after_somebody_else(jetstream):
        await jetstream.add_stream(name="classified", subjects=["classified"])
        try:
            await jetstream.publish("classified", b"1")
            await jetstream.publish("classified", b"2", headers={"Nats-Expected-Last-Sequence": "0"})
        finally:
            await jetstream.delete_stream("classified")

    missing = raised(asyncio.run, ask(lambda jetstream: jetstream.stream_info("nowhere")))
    assert isinstance(missing, jetstream_errors.NotFoundError)
    check(missing, PERMANENT)
    check(raised(asyncio.run, ask(publish_to_nobody)), TRANSIENT)
    late = raised(asyncio.run, ask(publish_after_somebody_else))
    assert isinstance(late, jetstream_errors.BadRequestError), "its class alone would be permanent"
    check(late, TRANSIENT)
