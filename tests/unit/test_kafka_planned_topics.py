"""Does each topic keep what it is made for, whatever the defaults of its cluster are?"""

import pytest

from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.topology import create_commands, planned_topics
from unpoison.brokers.kafka.url import address

WHERE, NAMES = address("kafka://localhost:9092?group=billing"), Names("orders", "billing")
POLICIES = {NAMES.topic: "delete", NAMES.retry: "delete", NAMES.dlq: "delete", NAMES.states: "compact"}


@pytest.mark.parametrize(("topic", "policy"), POLICIES.items())
def test_a_cluster_that_compacts_topics_by_default_does_not_compact_these(topic, policy):
    wanted = planned_topics(NAMES, WHERE)
    assert wanted[topic].config["cleanup.policy"] == policy
    (command,) = create_commands([wanted[topic]], WHERE)
    assert f"--config cleanup.policy={policy}" in command
