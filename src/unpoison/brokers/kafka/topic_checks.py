"""What about the settings of a topic or a server loses messages? Pure: settings in, findings out."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, PartitionMetadata, ResourceType, TopicMetadata

from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, ClusterQueries
from unpoison.brokers.kafka.errors import result_within
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.topology import replica_count
from unpoison.model.wording import counted
from unpoison.port.broker import Finding

NAMES = (
    "source-compacted",
    "retries-expire",
    "states-expire",
    "unclean-election",
    "few-partitions",
    "dlq-smaller",
    "clocks-of-clients",
    "offsets-expire",
    "metadata-too-small",
)
METADATA = 4_096
A_WEEK = 7 * 24 * 60

Settings = Mapping[str, str]


def of_source(topic: str, settings: Settings) -> Iterator[Finding]:
    if "compact" in settings["cleanup.policy"]:
        yield Finding(
            "source-compacted",
            f"Topic {topic!r} is compacted: of several messages with one key Kafka deletes all but the last, handled or not.",
            alter_command(topic, "cleanup.policy=delete"),
            loses=True,
        )


def of_own(topic: str, settings: Settings) -> Iterator[Finding]:
    """About the topics in which retries and dead letters are kept."""
    limits = [f"{name}={settings[name]}" for name in ("retention.ms", "retention.bytes") if int(settings[name]) >= 0]
    limits += ["cleanup.policy=compact"] if "compact" in settings["cleanup.policy"] else []
    if limits:
        yield Finding(
            "retries-expire",
            f"Topic {topic!r} has {limits[0]}: retries that wait, or dead letters, are deleted by it without a word.",
            alter_command(topic, "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1"),
            loses=True,
        )


def of_states(topic: str, settings: Settings) -> Iterator[Finding]:
    if "delete" in settings["cleanup.policy"]:
        yield Finding(
            "states-expire",
            f"Topic {topic!r} is not only compacted but deletes what is old: letters that were replayed would wait again, and a "
            f"second replay would send them twice.",
            alter_command(topic, "cleanup.policy=compact"),
            loses=True,
        )


def of_elections(topic: str, settings: Settings) -> Iterator[Finding]:
    if settings["unclean.leader.election.enable"] == "true":
        yield Finding(
            "unclean-election",
            f"Topic {topic!r} lets a server lead that lacks messages (unclean.leader.election.enable): these are gone then.",
            alter_command(topic, "unclean.leader.election.enable=false"),
            loses=True,
        )


def of_sizes(names: Names, source: Settings, dlq: Settings) -> Iterator[Finding]:
    if int(dlq["max.message.bytes"]) < int(source["max.message.bytes"]):
        yield Finding(
            "dlq-smaller",
            f"Topic {names.dlq!r} takes records of {int(dlq['max.message.bytes']):,} bytes and {names.topic!r} of "
            f"{int(source['max.message.bytes']):,}: a letter that does not fit only says where its body is, and has none once "
            f"Kafka has deleted that.",
            alter_command(names.dlq, f"max.message.bytes={int(source['max.message.bytes']) * 9 // 8}"),
        )


def of_retry(names: Names, settings: Settings, partitions: int) -> Iterator[Finding]:
    if partitions < PARTITIONS:
        yield Finding(
            "few-partitions",
            f"Topic {names.retry!r} has {partitions} partitions, and unpoison needs {PARTITIONS}, one for each purpose: `run` "
            f"refuses it.",
            f"kafka-topics.sh --alter --topic {names.retry} --partitions {PARTITIONS}",
            stops=True,
        )
    if settings["message.timestamp.type"] != "LogAppendTime":
        yield Finding(
            "clocks-of-clients",
            f"Topic {names.retry!r} has the times of whoever wrote to it: a client whose clock is wrong shortens or prolongs "
            f"delays.",
            alter_command(names.retry, "message.timestamp.type=LogAppendTime"),
        )


def of_server(settings: Settings) -> Iterator[Finding]:
    if int(settings.get("offset.metadata.max.bytes", METADATA)) < METADATA:
        yield Finding(
            "metadata-too-small",
            f"The server takes {settings['offset.metadata.max.bytes']} characters with a committed offset, and unpoison writes "
            f"up to {METADATA - 1:,}: a commit with more is refused, and its source stands still.",
            f"Have offset.metadata.max.bytes={METADATA} in server.properties.",
            stops=True,
        )
    if int(settings.get("offsets.retention.minutes", A_WEEK)) < A_WEEK:
        yield Finding(
            "offsets-expire",
            f"The server forgets what a group has committed {int(settings['offsets.retention.minutes']):,} minutes after its "
            f"last consumer ended: then everything in its topics is handled again.",
            f"Have offsets.retention.minutes={A_WEEK} or more in server.properties.",
        )


def alter_command(topic: str, settings: str) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {settings}"


# Are retries and dead letters kept on as many servers as their messages? Pure: what is there in, findings out.
#
# What a copy stands for must not be lost more easily than the message was.


COPIES_NAMES = ("fewer-copies", "fewer-in-sync")
IN_SYNC = "min.insync.replicas"


def of_copies(topics: Mapping[str, TopicMetadata], nodes: Collection[int]) -> Iterator[Finding]:
    """On how many servers each topic is, the source first; `nodes` are the servers that are there."""
    (source, known), *ours = topics.items()
    wanted = replica_count(known)
    for name, topic in ours:
        if (count := replica_count(topic)) < wanted:
            yield Finding(
                "fewer-copies",
                f"Topic {name!r} is on {_servers(count)} and {source!r} on {_servers(wanted)}: retries or dead letters are lost "
                f"with {_servers(count)}, and while that many are away {source!r} stands still.",
                f"kafka-reassign-partitions.sh --execute --reassignment-json-file copies.json, with this in copies.json: "
                f"{_reassignment(name, topic, wanted, sorted(nodes))}",
                loses=True,
            )


def _reassignment(name: str, topic: TopicMetadata, wanted: int, nodes: list[int]) -> str:
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
                alter_command(name, f"{IN_SYNC}={wanted}"),
                loses=True,
            )


def _servers(count: int) -> str:
    return counted(count, "server")


# How are topics set up that are there already, and what of that differs from how we would make them?


log = logging.getLogger("unpoison")


def settings_of(queries: ClusterQueries, kind: ResourceType, name: str) -> Mapping[str, str]:
    """Of a topic or a server. Raises KafkaException where this user may not see them."""
    (answer,) = queries.admin.describe_configs([ConfigResource(kind, name)], request_timeout=ANSWER_WITHIN).values()
    return {each.name: each.value for each in result_within(answer, 2 * ANSWER_WITHIN).values()}


def differences(queries: ClusterQueries, names: Names) -> list[Finding]:
    """What a consumer should know when it starts. What loses messages is not among it: that is asked for apart (`adopted`)."""
    try:
        topic, retry, dlq = (settings_of(queries, ResourceType.TOPIC, name) for name in (names.topic, names.retry, names.dlq))
    except KafkaException:
        return []  # who looks for losses says that this user may not see them
    return [*of_sizes(names, topic, dlq), *of_retry(names, retry, PARTITIONS)]


def warn_of_losses(queries: ClusterQueries, names: Names, topics: Collection[str]) -> None:
    """Of topics that somebody else has made while a consumer runs: a consumer that starts later would be refused."""
    for name in (each for each in (names.retry, names.dlq, names.states) if each in topics):
        try:
            found = settings_of(queries, ResourceType.TOPIC, name)
        except KafkaException:
            continue
        for finding in of_states(name, found) if name == names.states else of_own(name, found):
            extra = {"event": "finding", "source": names.source, "finding": finding.name}
            log.error("Source %r: %s %s", names.source, finding.problem, finding.fix, extra=extra)
