"""RabbitMQ keeps the promises about kills at every line."""

import pytest

from tests.contract.rabbitmq_lab import RabbitMQLab
from unpoison.testing.contract.killing import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(folder, rabbitmq):
    with RabbitMQLab(rabbitmq, folder) as lab:
        yield lab
