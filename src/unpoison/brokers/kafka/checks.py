"""Which settings of topics and servers lose messages, or stop a source? Tables of checks, and where they are applied.

A retry or a dead letter must not be lost more easily than its message: our topics are compared with the source.
"""

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, PartitionMetadata, ResourceType, TopicMetadata

from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, ClusterQueries
from unpoison.brokers.kafka.errors import result_within, unavailable, with_permission
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.topology import replica_count
from unpoison.model.events import fields
from unpoison.model.wording import counted
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, examine, loss, names_of, stop

log = logging.getLogger("unpoison")

MAX_METADATA = 4_096
A_WEEK = 7 * 24 * 60

Settings = Mapping[str, str]


class Topic(NamedTuple):
    """A topic, its settings, and the source that it belongs to."""

    name: str
    settings: Settings
    source: "Topic | None" = None
    partitions: int = PARTITIONS

    @property
    def limits(self) -> list[str]:
        """The settings by which Kafka deletes records."""
        found = [f"{name}={self.settings[name]}" for name in ("retention.ms", "retention.bytes") if int(self.settings[name]) >= 0]
        return found + (["cleanup.policy=compact"] if "compact" in self.settings["cleanup.policy"] else [])

    @property
    def largest(self) -> int:
        return int(self.settings["max.message.bytes"])

    @property
    def room_for_letters(self) -> int:
        return self.largest * 9 // 8

    @property
    def in_sync(self) -> int:
        return int(self.settings["min.insync.replicas"])

    @property
    def servers_in_sync(self) -> str:
        return counted(self.in_sync, "server")


ALTER = "kafka-configs.sh --alter --entity-type topics --entity-name {of.name} --add-config"
SOURCE_COMPACTED = loss(
    "source-compacted",
    lambda of: "compact" in of.settings["cleanup.policy"],
    "Topic {of.name!r} is compacted: of several messages with one key Kafka deletes all but the last, handled or not.",
    f"{ALTER} cleanup.policy=delete",
)
RETRIES_EXPIRE = loss(
    "retries-expire",
    lambda of: bool(of.limits),
    "Topic {of.name!r} has {of.limits[0]}: Kafka deletes waiting retries, or dead letters, without a word.",
    f"{ALTER} cleanup.policy=delete,retention.ms=-1,retention.bytes=-1",
)
STATES_EXPIRE = loss(
    "states-expire",
    lambda of: "delete" in of.settings["cleanup.policy"],
    "Topic {of.name!r} is not only compacted but deletes old records: letters that were replayed would wait again, and a "
    "second replay would send them twice.",
    f"{ALTER} cleanup.policy=compact",
)
UNCLEAN_ELECTION = loss(
    "unclean-election",
    lambda of: of.settings["unclean.leader.election.enable"] == "true",
    "Topic {of.name!r} lets a server lead that lacks messages (unclean.leader.election.enable): they are lost then.",
    f"{ALTER} unclean.leader.election.enable=false",
)
OF_RETRY = (
    stop(
        "few-partitions",
        lambda of: of.partitions < PARTITIONS,
        f"Topic {{of.name!r}} has {{of.partitions}} partitions, and unpoison needs {PARTITIONS}, one for each purpose: `run` "
        f"refuses it.",
        f"kafka-topics.sh --alter --topic {{of.name}} --partitions {PARTITIONS}",
    ),
    Check(
        "clocks-of-clients",
        lambda of: of.settings["message.timestamp.type"] != "LogAppendTime",
        "Topic {of.name!r} has the clients' times: a client whose clock is wrong shortens or prolongs delays.",
        f"{ALTER} message.timestamp.type=LogAppendTime",
    ),
)
DLQ_SMALLER = Check(
    "dlq-smaller",
    lambda of: of.largest < of.source.largest,
    "Topic {of.name!r} takes records of {of.largest:,} bytes and {of.source.name!r} of {of.source.largest:,}: a letter that "
    "does not fit only says where its body is, and has none once Kafka has deleted that.",
    f"{ALTER} max.message.bytes={{of.source.room_for_letters}}",
)
FEWER_IN_SYNC = loss(
    "fewer-in-sync",
    lambda of: of.in_sync < of.source.in_sync,
    "Topic {of.name!r} confirms a record that is on no more than {of.servers_in_sync}, and {of.source.name!r} only one that is "
    "on {of.source.servers_in_sync} (min.insync.replicas): a retry or a dead letter can be lost where its message could not.",
    f"{ALTER} min.insync.replicas={{of.source.in_sync}}",
)
OF_SERVER = (
    stop(
        "metadata-too-small",
        lambda of: int(of.get("offset.metadata.max.bytes", MAX_METADATA)) < MAX_METADATA,
        f"The server takes {{of[offset.metadata.max.bytes]}} characters with a committed offset, and unpoison writes up to "
        f"{MAX_METADATA - 1:,}: it refuses a commit with more, and the source stops.",
        f"Set offset.metadata.max.bytes={MAX_METADATA} in server.properties.",
    ),
    Check(
        "offsets-expire",
        lambda of: int(of.get("offsets.retention.minutes", A_WEEK)) < A_WEEK,
        "The server forgets a group's committed offsets {of[offsets.retention.minutes]} minutes after its last consumer ended: "
        "then everything in its topics is handled again.",
        f"Set offsets.retention.minutes={A_WEEK} or more in server.properties.",
    ),
)
_OF_TOPICS = (SOURCE_COMPACTED, RETRIES_EXPIRE, STATES_EXPIRE, UNCLEAN_ELECTION, *OF_RETRY, DLQ_SMALLER, FEWER_IN_SYNC)
NAMES = (*names_of(_OF_TOPICS, OF_SERVER), "fewer-copies")


def losses(names: Names, known: Mapping[str, Settings]) -> Iterator[Finding]:
    """What in the settings of the topics that exist loses messages. The source is one of them."""
    source = Topic(names.topic, known[names.topic])
    yield from examine((SOURCE_COMPACTED, UNCLEAN_ELECTION), source)
    for name, settings in known.items():
        if name != names.topic:
            yield from examine((_expires(names, name), UNCLEAN_ELECTION, FEWER_IN_SYNC), Topic(name, settings, source))


def _expires(names: Names, topic: str) -> Check:
    return STATES_EXPIRE if topic == names.states else RETRIES_EXPIRE


def retry_and_dlq(names: Names, known: Mapping[str, Settings], partitions: int = PARTITIONS) -> list[Finding]:
    """What a consumer should know of its retry topic, of so many partitions, and its DLQ, beside what loses messages."""
    found: list[Finding] = []
    if names.dlq in known:
        found += examine((DLQ_SMALLER,), Topic(names.dlq, known[names.dlq], Topic(names.topic, known[names.topic])))
    if names.group_name and names.retry in known:
        found += examine(OF_RETRY, Topic(names.retry, known[names.retry], partitions=partitions))
    return found


def fewer_copies(topics: Mapping[str, TopicMetadata], servers: Collection[int]) -> Iterator[Finding]:
    """Our topics that are on fewer servers than the source, which comes first; `servers` are those that are there."""
    (source, known), *ours = topics.items()
    wanted = replica_count(known)
    for name, topic in ours:
        if (count := replica_count(topic)) < wanted:
            few, many = counted(count, "server"), counted(wanted, "server")
            yield Finding(
                "fewer-copies",
                f"Topic {name!r} is on {few} and {source!r} on {many}: retries or dead letters are lost with {few}, and while "
                f"that many are away {source!r} is paused.",
                f"kafka-reassign-partitions.sh --execute --reassignment-json-file copies.json, with this in copies.json: "
                f"{_reassignment(name, topic, wanted, sorted(servers))}",
                loses=True,
            )


def _reassignment(name: str, topic: TopicMetadata, wanted: int, servers: Sequence[int]) -> str:
    partitions = [
        {"topic": name, "partition": number, "replicas": _replicas(topic.partitions[number], wanted, servers)}
        for number in sorted(topic.partitions)
    ]
    return json.dumps({"partitions": partitions, "version": 1})


def _replicas(partition: PartitionMetadata, wanted: int, servers: Sequence[int]) -> list[int]:
    """The servers that have it, whose first one still leads, and as many more as it takes: others for each partition."""
    at = partition.id % len(servers)
    more = [server for server in (*servers[at:], *servers[:at]) if server not in partition.replicas]
    return [*partition.replicas, *more][: max(wanted, len(partition.replicas))]


def topic_settings(queries: ClusterQueries, topics: Iterable[str]) -> dict[str, Settings]:
    """Of each of these topics. Raises KafkaException where this user may not see them."""
    return {name: _settings(queries, ResourceType.TOPIC, name) for name in topics}


def server_settings(queries: ClusterQueries) -> Settings:
    """Of one of the servers. Raises KafkaException where this user may not see them."""
    return _settings(queries, ResourceType.BROKER, str(min(queries.cluster().brokers)))


def _settings(queries: ClusterQueries, kind: ResourceType, name: str) -> Settings:
    (answer,) = queries.admin.describe_configs([ConfigResource(kind, name)], request_timeout=ANSWER_WITHIN).values()
    return {each.name: each.value for each in result_within(answer, 2 * ANSWER_WITHIN).values()}


def kept_for(queries: ClusterQueries, topic: str) -> float | None:
    """Seconds after which the server deletes a record of this topic because of its age; None: never."""
    try:
        settings = _settings(queries, ResourceType.TOPIC, topic)
    except KafkaException as error:
        denied = with_permission(error.args[0], f"DescribeConfigs on topic {topic!r}")
        raise unavailable(KafkaException(denied), f"asking for how long topic {topic!r} keeps messages") from None
    kept = int(settings["retention.ms"])
    return None if kept < 0 or "delete" not in settings["cleanup.policy"] else kept / 1000


def differences(queries: ClusterQueries, names: Names) -> list[Finding]:
    """What a consumer should know when it starts. What loses messages is asked for apart (`doctor.adopted`)."""
    try:
        return retry_and_dlq(names, topic_settings(queries, (names.topic, names.retry, names.dlq)))
    except KafkaException:
        return []  # `doctor.adopted` says that this user may not see them


def warn_of_losses(queries: ClusterQueries, names: Names, topics: Collection[str]) -> None:
    """Of topics that another program has created while a consumer runs: a consumer that starts later would be refused."""
    for name in (each for each in (names.retry, names.dlq, names.states) if each in topics):
        try:
            topic = Topic(name, _settings(queries, ResourceType.TOPIC, name))
        except KafkaException:
            continue
        for finding in examine((_expires(names, name),), topic):
            extra = fields("finding", source=names.source, finding=finding.name)
            log.error("Source %r: %s %s", names.source, finding.problem, finding.fix, extra=extra)
