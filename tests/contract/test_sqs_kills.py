"""SQS keeps the promises about kills at every line."""

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab
from unpoison.testing.contract.killing import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture
def lab(folder, elasticmq):
    with SQSLab(elasticmq, folder, visibility=SHORT_VISIBILITY) as lab:
        yield lab
