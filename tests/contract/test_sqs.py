"""SQS keeps the promises. All of them, on both servers: test_sqs_all.py; those about kills at every line: test_sqs_kills.py."""

import pytest

from tests.contract.sqs_lab import HEAVY, NEED_A_PROXY, SQSLab, order_matters, visibility_for
from unpoison.testing import given
from unpoison.testing.contract.quick import *  # noqa: F403

for heavy in HEAVY:
    del globals()[heavy]


@pytest.fixture
def lab(request, folder):
    server = "moto" if order_matters(request.node.name) else "elasticmq"
    with_proxy = any(words in request.node.name for words in NEED_A_PROXY)
    visibility = visibility_for(request.node.name)
    with SQSLab(request.getfixturevalue(server), folder, visibility=visibility, with_proxy=with_proxy) as lab:
        yield lab


def test_a_source_has_only_its_own_messages(lab):
    """In place of the promise of this name, which uses a dot: the name of an SQS queue can have none."""
    broker = lab.broker("orders", "orders-eu")
    broker.publish([*given.messages("orders", 2), *given.messages("orders-eu", 3, first=10)])
    assert {delivery.body for delivery in broker.fetch("orders", 10)} == {b"0", b"1"}
    assert {delivery.body for delivery in broker.fetch("orders-eu", 10)} == {b"10", b"11", b"12"}
