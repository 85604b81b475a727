"""RabbitMQ keeps the promises about isolated workers in which the broker has a part. All: test_rabbitmq_isolation_all.py."""

import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from unpoison.testing.contract.isolation_kills import *  # noqa: F403


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
