"""NATS keeps every promise about isolated workers."""

import pytest

from bezoar.testing.isolation.promises import *  # noqa: F403
from tests.contract.nats_lab import NATSLab

pytestmark = pytest.mark.long

UNHURRIED = ("stood_still", "gibibyte")
"""Promises during which a consumer says nothing for seconds. Whoever is silent for longer than ack_wait loses its messages."""


@pytest.fixture
def lab(request, folder, nats):
    waits = {"ack_wait": 30.0} if any(word in request.node.name for word in UNHURRIED) else {}
    with NATSLab(nats, folder, **waits) as lab:
        yield lab
