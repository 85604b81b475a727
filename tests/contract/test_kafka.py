"""Kafka keeps every promise but one. Those that take longer: test_kafka_more.py, test_kafka_isolation.py, test_kafka_kills.py.

The one: of two connections that fetch by turns each gets half. Kafka shares out partitions, and who has fewer of them gets less;
that nobody gets what another has is promised here in its place.
"""

import pytest

from tests.contract.kafka_lab import KafkaLab
from unpoison.testing import given
from unpoison.testing.contract.delivering import *  # noqa: F403
from unpoison.testing.contract.natives import *  # noqa: F403
from unpoison.testing.contract.ownership import *  # noqa: F403
from unpoison.testing.contract.publishing import *  # noqa: F403
from unpoison.testing.contract.reading import *  # noqa: F403
from unpoison.testing.contract.retrying import *  # noqa: F403
from unpoison.testing.contract.unwritable import *  # noqa: F403
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def lab(request, folder, kafka):
    # Each of two consumers needs a partition.
    partitions = 8 if "two_connections" in request.node.name else 1
    with KafkaLab(kafka, folder, partitions=partitions) as lab:
        yield lab


def test_two_connections_never_get_the_same_message(lab):
    one, other = lab.broker("orders"), lab.broker("orders")
    one.publish(given.messages("orders", 20))
    taken = []

    def all_came():
        taken.extend(delivery.body for broker in (one, other) for delivery in broker.fetch("orders", 2))
        return len(taken) >= 20

    wait_until(all_came, lambda: f"Only {len(taken)} of 20 came")
    assert len(taken) == len(set(taken)) == 20
    assert not one.fetch("orders", 10)
    assert not other.fetch("orders", 10)
