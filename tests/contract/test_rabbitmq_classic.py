"""Classic queues count nothing, they only flag. Who is charged does not depend on that. All: test_rabbitmq_everywhere.py."""

import pytest

from bezoar.testing.contract.isolation_kills import *  # noqa: F403
from tests.contract.rabbitmq_lab import ClassicLab


@pytest.fixture
def lab(folder, rabbitmq):
    with ClassicLab(rabbitmq, folder) as lab:
        yield lab
