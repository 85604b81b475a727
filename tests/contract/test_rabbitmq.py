"""RabbitMQ keeps every promise. Those about kills at every line take long: test_rabbitmq_kills.py."""

import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from unpoison.testing.contract.quick import *  # noqa: F403


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
