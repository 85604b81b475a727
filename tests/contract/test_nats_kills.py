"""NATS keeps the promises about kills at every line."""

import pytest

from tests.contract.nats_lab import SHORT_ACK_WAIT, NATSLab
from unpoison.testing.contract.killing import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(folder, nats):
    with NATSLab(nats, folder, SHORT_ACK_WAIT) as lab:
        yield lab
