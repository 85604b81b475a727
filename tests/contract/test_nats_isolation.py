"""NATS keeps every promise about isolated workers."""

import pytest

from tests.contract.nats_lab import NATSLab, isolated_ack_wait
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(request, folder, nats):
    with NATSLab(nats, folder, isolated_ack_wait(request.node.name)) as lab:
        yield lab
