"""NATS keeps every promise. Those about kills at every line take long: test_nats_kills.py."""

import pytest

from tests.contract.labs import waits_for_takeover
from tests.contract.nats_lab import ACK_WAIT, SHORT_ACK_WAIT, NATSLab
from unpoison.testing.contract.quick import *  # noqa: F403


@pytest.fixture
def lab(request, folder, nats):
    with NATSLab(nats, folder, SHORT_ACK_WAIT if waits_for_takeover(request.node.name) else ACK_WAIT) as lab:
        yield lab
