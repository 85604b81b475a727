"""How are topics set up that are there already, and what of that differs from how we would make them?"""

import logging
from collections.abc import Collection, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from unpoison.brokers.kafka.asking import ANSWER_WITHIN, Asking
from unpoison.brokers.kafka.doctor import settings
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.troubles import answered
from unpoison.port.broker import Finding

log = logging.getLogger("unpoison")


def settings_of(asking: Asking, kind: ResourceType, name: str) -> Mapping[str, str]:
    """Of a topic or a server. Raises KafkaException where this user may not see them."""
    (answer,) = asking.admin.describe_configs([ConfigResource(kind, name)], request_timeout=ANSWER_WITHIN).values()
    return {each.name: each.value for each in answered(answer, 2 * ANSWER_WITHIN).values()}


def differences(asking: Asking, names: Names) -> list[Finding]:
    """What a consumer should know when it starts. What loses messages is not among it: that is asked for apart (`adopted`)."""
    try:
        topic, retry, dlq = (settings_of(asking, ResourceType.TOPIC, name) for name in (names.topic, names.retry, names.dlq))
    except KafkaException:
        return []  # who looks for losses says that this user may not see them
    return [*settings.of_sizes(names, topic, dlq), *settings.of_retry(names, retry, PARTITIONS)]


def warn_of_losses(asking: Asking, names: Names, topics: Collection[str]) -> None:
    """Of topics that somebody else has made while a consumer runs: a consumer that starts later would be refused."""
    for name in (each for each in (names.retry, names.dlq, names.states) if each in topics):
        try:
            found = settings_of(asking, ResourceType.TOPIC, name)
        except KafkaException:
            continue
        for finding in settings.of_states(name, found) if name == names.states else settings.of_own(name, found):
            extra = {"event": "finding", "source": names.source, "finding": finding.name}
            log.error("Source %r: %s %s", names.source, finding.problem, finding.fix, extra=extra)
