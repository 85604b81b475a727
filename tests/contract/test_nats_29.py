"""NATS 2.9 delivers nothing at its time by itself, and counts in its own way. It keeps the promises that depend on that."""

import pytest

from tests.contract.labs import waits_for_takeover
from tests.contract.nats_lab import ACK_WAIT, SHORT_ACK_WAIT, NATSLab
from unpoison.testing.contract.dead_letters import *  # noqa: F403
from unpoison.testing.contract.delivering import *  # noqa: F403
from unpoison.testing.contract.operators import *  # noqa: F403
from unpoison.testing.contract.ownership import *  # noqa: F403
from unpoison.testing.contract.retrying import *  # noqa: F403
from unpoison.testing.contract.stopping import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(request, folder, nats_2_9):
    with NATSLab(nats_2_9, folder, SHORT_ACK_WAIT if waits_for_takeover(request.node.name) else ACK_WAIT) as lab:
        yield lab
