"""NATS keeps every promise about isolated workers."""

import pytest

from bezoar.testing.isolation.promises import *  # noqa: F403
from tests.contract.nats_lab import NATSLab, ack_wait_for

pytestmark = pytest.mark.long


@pytest.fixture
def lab(request, folder, nats):
    with NATSLab(nats, folder, ack_wait_for(request.node.name)) as lab:
        yield lab
