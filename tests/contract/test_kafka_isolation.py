"""Kafka keeps every promise about isolated workers."""

import pytest

from tests.contract.kafka_lab import KafkaLab
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long

UNHURRIED = ("stood_still",)
"""Promises during which a consumer says nothing for seconds. Whoever is silent for longer than its session loses its messages."""


@pytest.fixture
def lab(request, folder, kafka):
    waits = {"session_timeout": 30.0} if any(word in request.node.name for word in UNHURRIED) else {}
    with KafkaLab(kafka, folder, **waits) as lab:
        yield lab
