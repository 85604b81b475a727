"""NATS 2.9 delivers nothing at its time by itself, and counts in its own way. It keeps the promises that depend on that."""

import pytest

from bezoar.testing.contract.dead_letters import *  # noqa: F403
from bezoar.testing.contract.delivering import *  # noqa: F403
from bezoar.testing.contract.operators import *  # noqa: F403
from bezoar.testing.contract.ownership import *  # noqa: F403
from bezoar.testing.contract.retrying import *  # noqa: F403
from bezoar.testing.contract.stopping import *  # noqa: F403
from tests.contract.nats_lab import NATSLab

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, nats_2_9):
    with NATSLab(nats_2_9, folder) as lab:
        yield lab
