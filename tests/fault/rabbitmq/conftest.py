"""What the tests of RabbitMQ share."""

import pika
import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab


@pytest.fixture
def lab(tmp_path, rabbitmq):
    with RabbitMQLab(rabbitmq, tmp_path) as lab:
        yield lab


@pytest.fixture
def raw(lab):
    """The server as other programs see it."""
    connection = pika.BlockingConnection(pika.URLParameters(lab.url))
    yield connection.channel()
    connection.close()
