"""SQS keeps every promise about isolated workers."""

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, VISIBILITY, SQSLab
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long

WANTS = {
    "stood_still": {"visibility": VISIBILITY},  # whoever says nothing for longer than that loses its messages
    "gibibyte": {"visibility": VISIBILITY},
    "hundred_prefetched": {"visibility": 6, "pollers": 16},  # each poller reads ten ahead
}


@pytest.fixture
def lab(request, folder, elasticmq):
    wanted = next((wants for word, wants in WANTS.items() if word in request.node.name), {"visibility": SHORT_VISIBILITY})
    with SQSLab(elasticmq, folder, **wanted) as lab:
        yield lab
