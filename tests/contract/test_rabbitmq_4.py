"""RabbitMQ 4 counts and returns messages in its own way. It keeps the promises that depend on that."""

import pytest

from bezoar.testing.contract.dead_letters import *  # noqa: F403
from bezoar.testing.contract.ownership import *  # noqa: F403
from bezoar.testing.contract.stopping import *  # noqa: F403
from tests.contract.rabbitmq_lab import RabbitMQLab

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, rabbitmq_4):
    with RabbitMQLab(rabbitmq_4, folder) as lab:
        yield lab
