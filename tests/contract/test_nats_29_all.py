"""NATS 2.9 keeps the promises about isolated workers and about kills at every line."""

import pytest

from tests.contract.nats_lab import NATSLab, ack_wait_for
from unpoison.testing.contract.killing import *  # noqa: F403
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(request, folder, nats_2_9):
    with NATSLab(nats_2_9, folder, ack_wait_for(request.node.name)) as lab:
        yield lab
