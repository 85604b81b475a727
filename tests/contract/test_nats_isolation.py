"""NATS keeps every promise about isolated workers."""

import pytest

from tests.contract.nats_lab import NATSLab, ack_wait_for
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(request, folder, nats):
    with NATSLab(nats, folder, ack_wait_for(request.node.name)) as lab:
        yield lab
