"""A pass over a queue that is closed right after many single acknowledgements, on a server that has much to store."""

import threading
from contextlib import suppress

import pika
import pytest
from pika.exceptions import AMQPError, NackError

from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.servers_plugin import fixture_of
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.queue_pass import QueuePass, waiting_in
from unpoison.testing import given

MESSAGES = 1_000


@pytest.fixture(params=["rabbitmq", "rabbitmq-4"])
def lab(request, tmp_path):
    with RabbitMQLab(request.getfixturevalue(fixture_of(request.param)), tmp_path) as lab:
        yield lab


@pytest.fixture
def busy(lab):
    """Large messages go into another queue meanwhile, so that the server is slow to store."""
    over = threading.Event()

    def publish():
        while not over.is_set():
            with suppress(AMQPError):  # the server ends a connection with 541 where it cannot keep up: then it is slow enough
                publish_until_over()

    def publish_until_over():
        connection = pika.BlockingConnection(pika.URLParameters(lab.url))
        channel = connection.channel()
        channel.queue_declare("others", durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        for _ in range(300):
            if over.is_set():
                break
            with suppress(NackError):
                channel.basic_publish("", "others", b"x" * 1_000_000, pika.BasicProperties(delivery_mode=2))
            channel.queue_purge("others")
        connection.close()

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def test_no_message_that_was_let_go_comes_back_when_the_channel_ends(lab, busy):
    lab.broker("orders").publish(given.messages("orders", MESSAGES))
    broker, taken = RabbitMQBroker(lab.url), []
    broker.open([])
    connection = broker.connections.topology().connection
    for _ in range(5):
        taken.clear()
        looking = QueuePass(connection, "orders", taken.append)
        looking.take()
        gone = taken[1::2]  # each by itself: the first stays, so that none can speak for those before it
        looking.finish([message.tag for message in gone], wait=False)
        looking.close()
        assert waiting_in(connection, "orders") == len(taken) - len(gone)
    broker.close()
