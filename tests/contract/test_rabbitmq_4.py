"""RabbitMQ 4 counts and returns messages its own way; who is charged does not depend on it. All: test_rabbitmq_everywhere.py."""

import pytest

from bezoar.testing.contract.isolation_kills import *  # noqa: F403
from tests.contract.rabbitmq_lab import RabbitMQLab


@pytest.fixture
def lab(folder, rabbitmq_4):
    with RabbitMQLab(rabbitmq_4, folder) as lab:
        yield lab
