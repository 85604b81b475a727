"""RabbitMQ keeps every promise about isolated workers."""

import pytest

from bezoar.testing.isolation.promises import *  # noqa: F403
from tests.contract.rabbitmq_lab import RabbitMQLab

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
