"""RabbitMQ keeps the promises about isolated workers in which the broker has a part. All: test_rabbitmq_isolation_all.py."""

import pytest

from bezoar.testing.contract.isolation_kills import *  # noqa: F403
from tests.contract.rabbitmq_lab import RabbitMQLab


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
