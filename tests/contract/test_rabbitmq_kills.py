"""RabbitMQ keeps the promises about kills at every line."""

import pytest

from bezoar.testing.contract.killing import *  # noqa: F403
from tests.contract.rabbitmq_lab import RabbitMQLab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
