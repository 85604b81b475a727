"""Are retries and dead letters kept on as many servers as their messages? Pure: what is there in, findings out.

What a copy stands for must not be lost more easily than the message was.
"""

import json
from collections.abc import Collection, Iterator, Mapping

from confluent_kafka.admin import PartitionMetadata, TopicMetadata

from unpoison.brokers.kafka.doctor.settings import Settings, change
from unpoison.brokers.kafka.planned_topics import copies
from unpoison.model.wording import counted
from unpoison.port.broker import Finding

NAMES = ("fewer-copies", "fewer-in-sync")
IN_SYNC = "min.insync.replicas"


def of_copies(topics: Mapping[str, TopicMetadata], nodes: Collection[int]) -> Iterator[Finding]:
    """On how many servers each topic is, the source first; `nodes` are the servers that are there."""
    (source, known), *ours = topics.items()
    wanted = copies(known)
    for name, topic in ours:
        if (count := copies(topic)) < wanted:
            yield Finding(
                "fewer-copies",
                f"Topic {name!r} is on {_servers(count)} and {source!r} on {_servers(wanted)}: retries or dead letters are lost "
                f"with {_servers(count)}, and while that many are away {source!r} stands still.",
                f"kafka-reassign-partitions.sh --execute --reassignment-json-file copies.json, with this in copies.json: "
                f"{_spread(name, topic, wanted, sorted(nodes))}",
                loses=True,
            )


def _spread(name: str, topic: TopicMetadata, wanted: int, nodes: list[int]) -> str:
    partitions = [
        {"topic": name, "partition": number, "replicas": _replicas(topic.partitions[number], wanted, nodes)}
        for number in sorted(topic.partitions)
    ]
    return json.dumps({"partitions": partitions, "version": 1})


def _replicas(partition: PartitionMetadata, wanted: int, nodes: list[int]) -> list[int]:
    """Those that have it, whose first one goes on leading, and as many more as it takes: others for each partition."""
    at = partition.id % len(nodes)
    more = [node for node in nodes[at:] + nodes[:at] if node not in partition.replicas]
    return [*partition.replicas, *more][: max(wanted, len(partition.replicas))]


def of_sync(topics: Mapping[str, Settings]) -> Iterator[Finding]:
    """How many servers must have a record before it counts as stored; the source first."""
    (source, known), *ours = topics.items()
    wanted = int(known[IN_SYNC])
    for name, settings in ours:
        if (count := int(settings[IN_SYNC])) < wanted:
            yield Finding(
                "fewer-in-sync",
                f"Topic {name!r} confirms a record that is on no more than {_servers(count)}, and {source!r} only what is on "
                f"{_servers(wanted)} ({IN_SYNC}): a retry or a dead letter can be lost where its message could not.",
                change(name, f"{IN_SYNC}={wanted}"),
                loses=True,
            )


def _servers(count: int) -> str:
    return counted(count, "server")
