"""NATS keeps every promise. Those about kills at every line take long: test_nats_kills.py."""

import pytest

from bezoar.testing.contract.dead_letters import *  # noqa: F403
from bezoar.testing.contract.delivering import *  # noqa: F403
from bezoar.testing.contract.hooks import *  # noqa: F403
from bezoar.testing.contract.operators import *  # noqa: F403
from bezoar.testing.contract.ownership import *  # noqa: F403
from bezoar.testing.contract.retrying import *  # noqa: F403
from bezoar.testing.contract.sharing import *  # noqa: F403
from bezoar.testing.contract.stopping import *  # noqa: F403
from bezoar.testing.contract.unwritable import *  # noqa: F403
from tests.contract.nats_lab import NATSLab


@pytest.fixture
def lab(folder, nats):
    with NATSLab(nats, folder) as lab:
        yield lab
