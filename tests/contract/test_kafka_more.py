"""Kafka keeps the promises about dead letters, operators, hooks and several processes: longer than the everyday run may be."""

import pytest

from tests.contract.kafka_lab import KafkaLab
from unpoison.testing.contract.dead_letters import *  # noqa: F403
from unpoison.testing.contract.faults import *  # noqa: F403
from unpoison.testing.contract.hooks import *  # noqa: F403
from unpoison.testing.contract.operators import *  # noqa: F403
from unpoison.testing.contract.sharing import *  # noqa: F403
from unpoison.testing.contract.stopping import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(request, folder, kafka):
    # Each of several consumers needs a partition.
    partitions = 8 if "several_processes" in request.node.name else 1
    with KafkaLab(kafka, folder, partitions=partitions) as lab:
        yield lab
