"""What the tests of SQS share."""

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab


@pytest.fixture
def lab(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path) as lab:
        yield lab


@pytest.fixture
def proxied_lab(tmp_path, elasticmq):
    """With a proxy that can refuse, delay and forge answers."""
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        yield lab


@pytest.fixture
def quick(tmp_path, elasticmq):
    """The same. What is not renewed, or is let go, comes again soon."""
    with SQSLab(elasticmq, tmp_path, visibility=SHORT_VISIBILITY, with_proxy=True) as lab:
        yield lab
