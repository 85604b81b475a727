"""NATS keeps every promise. Those about kills at every line take long: test_nats_kills.py."""

import pytest

from tests.contract.nats_lab import NATSLab
from unpoison.testing.contract.quick import *  # noqa: F403


@pytest.fixture
def lab(folder, nats):
    with NATSLab(nats, folder) as lab:
        yield lab
