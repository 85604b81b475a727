"""What is wrong with these topics, as far as this user may see? Everything is asked; nothing is made, joined or committed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from bezoar import findings
from bezoar.brokers.kafka.books import DEAD
from bezoar.brokers.kafka.broker import KafkaBroker
from bezoar.brokers.kafka.doctor import cutting, settings
from bezoar.brokers.kafka.doctor.settings import Settings
from bezoar.brokers.kafka.names import Names
from bezoar.brokers.kafka.session import ANSWER_WITHIN
from bezoar.brokers.kafka.troubles import told
from bezoar.ports import Finding

NAMES = (*settings.NAMES, *cutting.NAMES, "topics-missing", "source-missing", "many-dead-letters")
DEEP = ()
DLQ = ".dlq"


def examine(  # every broker is asked the same
    url: str,
    sources: Sequence[str],
    longest: float | None,  # noqa: ARG001
    *,
    deep: bool = False,  # noqa: ARG001
) -> Sequence[Finding]:
    """All that is found with this prefix and group. Nothing here takes long, so `deep` adds nothing."""
    with closing(KafkaBroker(url)) as broker:
        topics = _topics(broker)
        known = _sources(topics, broker.session.address.prefix)
        found = list(_of_server(broker))
        found += findings.of_sources(sources, known, broker.session.address.shown)
        for source in sources or known:
            if source in known:
                found += _of_source(broker, broker.session.names(source), topics)
        return found


def _topics(broker: KafkaBroker) -> dict[str, int]:
    """All topics, with how many partitions each has."""
    return {name: len(topic.partitions) for name, topic in broker.session.cluster().topics.items()}


def _sources(topics: Mapping[str, int], prefix: str) -> list[str]:
    """Those that bezoar has used: they have a DLQ."""
    names = [name.removesuffix(DLQ) for name in topics if name.endswith(DLQ) and name.startswith(prefix)]
    return sorted(name.removeprefix(prefix) for name in names if name in topics)


def _of_source(broker: KafkaBroker, names: Names, topics: Mapping[str, int]) -> Iterator[Finding]:
    missing = [name for name in (names.retry, names.dlq, names.states) if name not in topics]
    if missing:
        yield Finding(
            "topics-missing",
            f"Source {names.source!r} of group {names.group_name!r} has no topic {missing[0]!r}: who needs it stands still.",
            "Start a consumer or publish: what is missing is made.",
        )
        return
    wanted = (names.topic, names.retry, names.dlq, names.states)
    try:
        source, retry, dlq, states = (_settings(broker, ResourceType.TOPIC, name) for name in wanted)
    except KafkaException as error:
        right = f"kafka-acls.sh --add --operation DescribeConfigs --topic {names.topic} --resource-pattern-type prefixed"
        yield findings.cannot_look(f"the settings of topic {names.topic!r}", f"{told(error.args[0])}.", right)
        return
    yield from settings.of_source(names.topic, source)
    yield from settings.of_own(names.retry, retry)
    yield from settings.of_own(names.dlq, dlq)
    yield from settings.of_states(names.states, states)
    for name, known in zip(wanted, (source, retry, dlq, states), strict=True):
        yield from settings.of_elections(name, known)
    yield from settings.of_sizes(names, source, dlq)
    yield from settings.of_retry(names, retry, topics[names.retry])
    yield from cutting.of_retries(broker, names, topics[names.retry])
    dead = sum(entry.state == DEAD for entry in broker.books(names.source).entries.values())
    yield from findings.of_dead_letters({names.source: dead}, broker.session.address.shown)


def _of_server(broker: KafkaBroker) -> Iterator[Finding]:
    try:
        nodes = broker.session.cluster().brokers
        yield from settings.of_server(_settings(broker, ResourceType.BROKER, str(min(nodes))))
    except KafkaException as error:
        right = "kafka-acls.sh --add --cluster --operation DescribeConfigs --allow-principal User:NAME"
        yield findings.cannot_look("the settings of the server", f"{told(error.args[0])}.", right)


def _settings(broker: KafkaBroker, kind: ResourceType, name: str) -> Settings:
    (answer,) = broker.session.admin.describe_configs([ConfigResource(kind, name)], request_timeout=ANSWER_WITHIN).values()
    return {each.name: each.value for each in answer.result(ANSWER_WITHIN).values()}
