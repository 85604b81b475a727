"""NATS keeps the promises about kills at every line."""

import pytest

from bezoar.testing.contract.killing import *  # noqa: F403
from tests.contract.nats_lab import NATSLab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def lab(folder, nats):
    with NATSLab(nats, folder) as lab:
        yield lab
