"""What is wrong with these topics, as far as this user may see? Everything is asked; nothing is made, joined or committed."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import ResourceType, TopicMetadata

from unpoison.brokers.kafka.books import DEAD
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.doctor import copies, cutting, settings
from unpoison.brokers.kafka.doctor.settings import Settings
from unpoison.brokers.kafka.names import Names, groups_of, used_sources
from unpoison.brokers.kafka.planned_topics import commands, planned
from unpoison.brokers.kafka.topic_settings import settings_of
from unpoison.brokers.kafka.troubles import told, unavailable
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = (*settings.NAMES, *copies.NAMES, *cutting.NAMES, "topics-missing", "source-missing", "many-dead-letters")
DEEP = ()

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
        known = used_sources(topics, broker.session.address.prefix)
        found = list(_of_server(broker))
        found += _of_names(broker, sources, known, topics)
        for source in sources or known:
            names = broker.session.names(source)
            # Where no group has consumed it, the empty name stands for what is there without one.
            groups = [names.group_name] if names.group_name else groups_of(names, topics) or [""]
            for group in groups if names.topic in topics else ():
                found += _of_source(broker, names._replace(group_name=group), topics)
        return list(dict.fromkeys(found))  # what groups share is told once


def _of_names(broker: KafkaBroker, sources: Sequence[str], known: Sequence[str], topics: Topics) -> Iterator[Finding]:
    """About sources that are not there, with topics whose names are like theirs. One that unpoison never used is there."""
    prefix = broker.session.address.prefix
    there = [name.removeprefix(prefix) for name in topics if name.startswith(prefix)]
    for source in sources:
        if source not in there:
            similar = difflib.get_close_matches(source, there)
            yield from findings.of_sources([source], {*known, *similar}, broker.session.address.shown)


def known_sources(url: str) -> Sequence[str]:
    """The sources that this server has been used for, with the prefix of this URL."""
    with closing(KafkaBroker(url)) as broker:
        return used_sources(_topics(broker), broker.session.address.prefix)


def _topics(broker: KafkaBroker) -> Topics:
    return {name: topic for name, topic in broker.session.cluster().topics.items() if topic.partitions}


def _of_source(broker: KafkaBroker, names: Names, topics: Topics) -> Iterator[Finding]:
    there = {name: topics[name] for name in names.topics if name in topics}
    yield from _of_missing(broker, names, there)
    try:
        known = {name: settings_of(broker.session, ResourceType.TOPIC, name) for name in there}
    except KafkaException as error:
        right = f"kafka-acls.sh --add --operation DescribeConfigs --topic {names.topic} --resource-pattern-type prefixed"
        yield findings.cannot_look(f"the settings of topic {names.topic!r}", f"{told(error.args[0])}.", right)
        return
    yield from _of_losses(broker, names, there, known)
    if names.dlq in there:
        yield from settings.of_sizes(names, known[names.topic], known[names.dlq])
        dead = sum(entry.state == DEAD for entry in broker.books(names.source).entries.values())
        yield from findings.of_dead_letters({names.source: dead}, broker.session.address.shown)
    if names.group_name and names.retry in there:
        partitions = len(there[names.retry].partitions)
        yield from settings.of_retry(names, known[names.retry], partitions)
        yield from cutting.of_retries(broker, names, partitions)


def _of_missing(broker: KafkaBroker, names: Names, there: Topics) -> Iterator[Finding]:
    """Before the first run everything but the source is missing; later that is somebody's doing."""
    address = broker.session.address
    missing = {name: topic for name, topic in planned(names, address, there).items() if name not in there}
    if missing:
        group = f" of group {names.group_name!r}" if names.group_name else ""
        yield Finding(
            "topics-missing",
            f"Source {names.source!r}{group} has no topic {', '.join(map(repr, missing))} yet. A consumer that starts makes what "
            f"is missing, and does not start with create=False.",
            "\n".join(["To make it yourself:", *commands(missing.values(), address)]),
        )


def adopted(url: str, source: str) -> Sequence[Finding]:
    """Without what takes long: dead letters are not read."""
    with closing(KafkaBroker(url)) as broker:
        names, topics = broker.session.names(source), _topics(broker)
        there = {name: topics[name] for name in names.topics if name in topics}
        if names.topic not in there:
            return []
        try:
            known = {name: settings_of(broker.session, ResourceType.TOPIC, name) for name in there}
        except KafkaException as error:
            raise unavailable(error, f"asking for the settings of topic {names.topic!r}") from None
        return list(_of_losses(broker, names, there, known))


def _of_losses(broker: KafkaBroker, names: Names, there: Topics, known: Mapping[str, Settings]) -> Iterator[Finding]:
    """What in the settings of those topics that are there loses messages. The source is one of them."""
    yield from settings.of_source(names.topic, known[names.topic])
    for name, each in known.items():
        if name == names.states:
            yield from settings.of_states(name, each)
        elif name != names.topic:
            yield from settings.of_own(name, each)
        yield from settings.of_elections(name, each)
    yield from copies.of_copies(there, broker.session.cluster().brokers)
    yield from copies.of_sync(known)


def _of_server(broker: KafkaBroker) -> Iterator[Finding]:
    try:
        nodes = broker.session.cluster().brokers
        yield from settings.of_server(settings_of(broker.session, ResourceType.BROKER, str(min(nodes))))
    except KafkaException as error:
        right = "kafka-acls.sh --add --cluster --operation DescribeConfigs --allow-principal User:NAME"
        yield findings.cannot_look("the settings of the server", f"{told(error.args[0])}.", right)
