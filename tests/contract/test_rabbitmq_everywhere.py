"""RabbitMQ keeps every promise on both versions and with both kinds of queue. (3.10 with quorum queues: test_rabbitmq.py.)"""

import pytest

from tests.contract.rabbitmq_lab import ClassicLab, RabbitMQLab
from tests.servers_plugin import OWNER, shared_or_skip
from unpoison.testing.contract import *  # noqa: F403
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.servers("rabbitmq", "rabbitmq-4")]


@pytest.fixture(
    params=[("rabbitmq", ClassicLab), ("rabbitmq-4", RabbitMQLab), ("rabbitmq-4", ClassicLab)],
    ids=["3.10 classic", "4.3 quorum", "4.3 classic"],
)
def lab(request, folder):
    name, kind = request.param
    with kind(shared_or_skip(name, request.config.stash[OWNER]), folder) as lab:
        yield lab
