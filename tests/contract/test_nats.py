"""NATS keeps every promise. Those about kills at every line take long: test_nats_kills.py."""

import pytest

from bezoar.testing.contract.quick import *  # noqa: F403
from tests.contract.nats_lab import NATSLab


@pytest.fixture
def lab(folder, nats):
    with NATSLab(nats, folder) as lab:
        yield lab
