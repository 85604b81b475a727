"""Which topics does a source need, with which settings? Pure: names in, topics and the commands that make them out."""

from collections.abc import Collection, Iterator, Mapping

from confluent_kafka.admin import NewTopic, TopicMetadata

from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.url import Address

NOT_COMPACTED = {"cleanup.policy": "delete"}
"""The default of a cluster may be another: of messages with equal keys only the last would be kept."""
KEPT_FOR_EVER = NOT_COMPACTED | {"retention.ms": "-1", "retention.bytes": "-1"}
LARGE = {"max.message.bytes": str(16 * 1024 * 1024)}
LARGER = {"max.message.bytes": str(18 * 1024 * 1024)}
"""A letter is its message and more."""
SERVER_TIME = {"message.timestamp.type": "LogAppendTime"}


def planned(names: Names, address: Address, found: Mapping[str, TopicMetadata] = {}) -> dict[str, NewTopic]:
    """The topics of a source as they are made; `found` are those that are there.

    Ours have as many copies as a source that is there already: what a retry or a dead letter stands for must not be lost more
    easily than its message.
    """
    configs = {names.topic: (address.partitions, NOT_COMPACTED | LARGE)}
    if names.group_name:
        configs[names.retry] = (PARTITIONS, KEPT_FOR_EVER | LARGER | SERVER_TIME)
    configs[names.dlq] = (1, KEPT_FOR_EVER | LARGER)
    configs[names.states] = (1, SERVER_TIME | {"cleanup.policy": "compact"})
    replicas = address.replicas
    if replicas < 0 and names.topic in found:
        replicas = copies(found[names.topic])
    return {name: NewTopic(name, partitions, replicas, config=config) for name, (partitions, config) in configs.items()}


def commands(topics: Collection[NewTopic], address: Address) -> Iterator[str]:
    """How an administrator makes these. Where no number is given the server decides."""
    for topic in topics:
        numbers = {"--partitions": topic.num_partitions, "--replication-factor": topic.replication_factor}
        options = [f"{option} {number}" for option, number in numbers.items() if number > 0]
        options += [f"--config {name}={value}" for name, value in (topic.config or {}).items()]
        server = f"--bootstrap-server {address.options['bootstrap.servers']}"
        yield " ".join(["kafka-topics.sh", server, "--create", "--topic", topic.topic, *options])


def contents(names: Names, topic: str) -> str:
    """What was in a topic that is gone."""
    return {
        names.retry: "what waited in it for another start is gone",
        names.dlq: "the dead letters in it are gone",
        names.states: "letters that were replayed or discarded before count as dead again",
    }.get(topic, "its messages are gone")


def copies(topic: TopicMetadata) -> int:
    """On how many servers each of its messages is."""
    return min(len(partition.replicas) for partition in topic.partitions.values())
