"""What the tests of NATS share."""

import pytest

from tests.contract.nats_lab import NATSLab


@pytest.fixture
def lab(tmp_path, nats):
    with NATSLab(nats, tmp_path) as lab:
        yield lab
