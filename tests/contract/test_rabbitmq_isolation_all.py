"""RabbitMQ keeps every promise about isolated workers."""

import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
