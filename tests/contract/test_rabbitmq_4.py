"""RabbitMQ 4 and classic queues count and return messages in their own ways; who is charged does not depend on it.

The heart of it, every day. Every promise: test_rabbitmq_everywhere.py.
"""

import pytest

from tests.contract.rabbitmq_lab import ClassicLab, RabbitMQLab
from unpoison.testing.contract.isolation_kills import (
    test_a_message_that_kills_every_process_of_its_consumer_is_dead_lettered_as_lost,  # noqa: F401
)


@pytest.fixture(params=[RabbitMQLab, ClassicLab], ids=["quorum", "classic"])
def lab(request, folder, rabbitmq_4):
    with request.param(rabbitmq_4, folder) as lab:
        yield lab
