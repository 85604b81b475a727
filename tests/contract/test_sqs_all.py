"""SQS keeps every promise: on ElasticMQ with requests that wait at the server, and on moto, which keeps messages in order."""

import pytest

from tests.contract.sqs_lab import NEED_A_PROXY, SQSLab, order_matters, visibility_for
from unpoison.testing.contract.quick import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.servers("elasticmq", "moto")]

ON_ELASTICMQ = ("two_processes", "several_processes", "two_threads")
"""moto needs minutes for them: each receipt is looked for among all messages."""


@pytest.fixture(params=["elasticmq", "moto"])
def lab(request, folder):
    name = request.node.name
    if "only_its_own_messages" in name:
        pytest.skip("uses a name with a dot, which no SQS queue can have; test_sqs.py has it with another one")
    if request.param == "elasticmq" and order_matters(name):
        pytest.skip("ElasticMQ shuffles what was sent within one millisecond; it is kept on moto")
    if request.param == "moto" and any(word in name for word in ON_ELASTICMQ):
        pytest.skip("moto takes minutes for it; it is kept on ElasticMQ")
    options = {"wait": 1 if request.param == "elasticmq" else 0, "visibility": visibility_for(name)}
    with_proxy = any(words in name for words in NEED_A_PROXY)
    with SQSLab(request.getfixturevalue(request.param), folder, with_proxy=with_proxy, **options) as lab:
        yield lab
