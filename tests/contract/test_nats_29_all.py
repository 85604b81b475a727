"""NATS 2.9 keeps the promises about isolated workers and about kills at every line."""

import pytest

from tests.contract.nats_lab import NATSLab, isolated_ack_wait
from unpoison.testing.contract.killing import *  # noqa: F403
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(request, folder, nats_2_9):
    with NATSLab(nats_2_9, folder, isolated_ack_wait(request.node.name)) as lab:
        yield lab
