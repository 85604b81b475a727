"""SQS keeps every promise about isolated workers."""

import pytest

from bezoar.testing.isolation.promises import *  # noqa: F403
from tests.contract.sqs_lab import SQSLab

pytestmark = pytest.mark.long

UNHURRIED = ("stood_still", "gibibyte")
"""Promises during which a consumer says nothing for seconds. Whoever is silent for longer than visibility loses its messages."""


@pytest.fixture
def lab(request, folder, elasticmq):
    waits = {"visibility": 30} if any(word in request.node.name for word in UNHURRIED) else {}
    with SQSLab(elasticmq, folder, **waits) as lab:
        yield lab
