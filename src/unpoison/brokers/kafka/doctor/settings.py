"""What about the settings of a topic or a server loses messages? Pure: settings in, findings out."""

from collections.abc import Iterator, Mapping

from unpoison.brokers.kafka.names import PARTITIONS, Names
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
            change(topic, "cleanup.policy=delete"),
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
            change(topic, "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1"),
            loses=True,
        )


def of_states(topic: str, settings: Settings) -> Iterator[Finding]:
    if "delete" in settings["cleanup.policy"]:
        yield Finding(
            "states-expire",
            f"Topic {topic!r} is not only compacted but deletes what is old: letters that were replayed would wait again, and a "
            f"second replay would send them twice.",
            change(topic, "cleanup.policy=compact"),
            loses=True,
        )


def of_elections(topic: str, settings: Settings) -> Iterator[Finding]:
    if settings["unclean.leader.election.enable"] == "true":
        yield Finding(
            "unclean-election",
            f"Topic {topic!r} lets a server lead that lacks messages (unclean.leader.election.enable): these are gone then.",
            change(topic, "unclean.leader.election.enable=false"),
            loses=True,
        )


def of_sizes(names: Names, source: Settings, dlq: Settings) -> Iterator[Finding]:
    if int(dlq["max.message.bytes"]) < int(source["max.message.bytes"]):
        yield Finding(
            "dlq-smaller",
            f"Topic {names.dlq!r} takes records of {int(dlq['max.message.bytes']):,} bytes and {names.topic!r} of "
            f"{int(source['max.message.bytes']):,}: a letter that does not fit only says where its body is, and has none once "
            f"Kafka has deleted that.",
            change(names.dlq, f"max.message.bytes={int(source['max.message.bytes']) * 9 // 8}"),
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
            change(names.retry, "message.timestamp.type=LogAppendTime"),
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


def change(topic: str, settings: str) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {settings}"
