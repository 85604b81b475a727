"""What is wrong with these topics, as far as this user may see? Everything is asked; nothing is made, joined or committed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType, TopicMetadata

from unpoison import findings
from unpoison.brokers.kafka.asking import ANSWER_WITHIN
from unpoison.brokers.kafka.books import DEAD
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.doctor import copies, cutting, settings
from unpoison.brokers.kafka.doctor.settings import Settings
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.troubles import answered, told, unavailable
from unpoison.ports import Finding

NAMES = (*settings.NAMES, *copies.NAMES, *cutting.NAMES, "topics-missing", "source-missing", "many-dead-letters")
DEEP = ()
DLQ = ".dlq"

Topics = Mapping[str, TopicMetadata]


def examine(  # every broker is asked the same
    url: str,
    sources: Sequence[str],
    longest: float | None,  # noqa: ARG001
    *,
    deep: bool = False,  # noqa: ARG001
) -> Sequence[Finding]:
    """All that is found with this prefix and group, or for every group. Nothing here takes long, so `deep` adds nothing."""
    with closing(KafkaBroker(url)) as broker:
        topics = _topics(broker)
        known = _sources(topics, broker.session.address.prefix)
        found = list(_of_server(broker))
        found += findings.of_sources(sources, known, broker.session.address.shown)
        for source in sources or known:
            names = broker.session.names(source)
            for group in ([names.group_name] if names.group_name else _groups(names, topics)) if source in known else ():
                found += _of_source(broker, names._replace(group_name=group), topics)
        return list(dict.fromkeys(found))  # what groups share is told once


def _groups(names: Names, topics: Topics) -> list[str]:
    """The groups that have consumed the source: each has a topic for its retries. Looked at if the URL names none."""
    begin, end = f"{names.topic}.", ".retry"
    return sorted(name[len(begin) : -len(end)] for name in topics if name.startswith(begin) and name.endswith(end))


def known_sources(url: str) -> Sequence[str]:
    """The sources that this server has been used for, with the prefix of this URL."""
    with closing(KafkaBroker(url)) as broker:
        return _sources(_topics(broker), broker.session.address.prefix)


def _topics(broker: KafkaBroker) -> Topics:
    return {name: topic for name, topic in broker.session.cluster().topics.items() if topic.partitions}


def _sources(topics: Topics, prefix: str) -> list[str]:
    """Those that unpoison has used: they have a DLQ."""
    names = [name.removesuffix(DLQ) for name in topics if name.endswith(DLQ) and name.startswith(prefix)]
    return sorted(name.removeprefix(prefix) for name in names if name in topics)


def _of_source(broker: KafkaBroker, names: Names, topics: Topics) -> Iterator[Finding]:
    missing = [name for name in (names.retry, names.dlq, names.states) if name not in topics]
    if missing:
        yield Finding(
            "topics-missing",
            f"Source {names.source!r} of group {names.group_name!r} has no topic {missing[0]!r}: who needs it stands still.",
            "Start a consumer or publish: what is missing is made.",
        )
        return
    try:
        known = [_settings(broker, ResourceType.TOPIC, name) for name in names.topics]
    except KafkaException as error:
        right = f"kafka-acls.sh --add --operation DescribeConfigs --topic {names.topic} --resource-pattern-type prefixed"
        yield findings.cannot_look(f"the settings of topic {names.topic!r}", f"{told(error.args[0])}.", right)
        return
    source, retry, dlq, _ = known
    partitions = len(topics[names.retry].partitions)
    yield from _of_losses(broker, names, topics, known)
    yield from settings.of_sizes(names, source, dlq)
    yield from settings.of_retry(names, retry, partitions)
    yield from cutting.of_retries(broker, names, partitions)
    dead = sum(entry.state == DEAD for entry in broker.books(names.source).entries.values())
    yield from findings.of_dead_letters({names.source: dead}, broker.session.address.shown)


def adopted(url: str, source: str) -> Sequence[Finding]:
    """Without what takes long: dead letters are not read."""
    with closing(KafkaBroker(url)) as broker:
        names, topics = broker.session.names(source), _topics(broker)
        if any(name not in topics for name in names.topics):
            return []
        try:
            known = [_settings(broker, ResourceType.TOPIC, name) for name in names.topics]
        except KafkaException as error:
            raise unavailable(error, f"asking for the settings of topic {names.topic!r}") from None
        return list(_of_losses(broker, names, topics, known))


def _of_losses(broker: KafkaBroker, names: Names, topics: Topics, known: Sequence[Settings]) -> Iterator[Finding]:
    """What in the settings of these four topics loses messages."""
    source, retry, dlq, states = known
    yield from settings.of_source(names.topic, source)
    yield from settings.of_own(names.retry, retry)
    yield from settings.of_own(names.dlq, dlq)
    yield from settings.of_states(names.states, states)
    for name, each in zip(names.topics, known, strict=True):
        yield from settings.of_elections(name, each)
    yield from copies.of_copies({name: topics[name] for name in names.topics}, broker.session.cluster().brokers)
    yield from copies.of_sync(dict(zip(names.topics, known, strict=True)))


def _of_server(broker: KafkaBroker) -> Iterator[Finding]:
    try:
        nodes = broker.session.cluster().brokers
        yield from settings.of_server(_settings(broker, ResourceType.BROKER, str(min(nodes))))
    except KafkaException as error:
        right = "kafka-acls.sh --add --cluster --operation DescribeConfigs --allow-principal User:NAME"
        yield findings.cannot_look("the settings of the server", f"{told(error.args[0])}.", right)


def _settings(broker: KafkaBroker, kind: ResourceType, name: str) -> Settings:
    (answer,) = broker.session.admin.describe_configs([ConfigResource(kind, name)], request_timeout=ANSWER_WITHIN).values()
    return {each.name: each.value for each in answered(answer, 2 * ANSWER_WITHIN).values()}
