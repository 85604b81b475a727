"""What is wrong with these topics, as far as this user may see? It only asks: nothing is created, joined or committed."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicMetadata

from unpoison.brokers.kafka import checks
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.checks import Settings, server_settings, topic_settings
from unpoison.brokers.kafka.cluster_queries import PartitionKey
from unpoison.brokers.kafka.errors import error_text, unavailable
from unpoison.brokers.kafka.letters import DEAD, body_position
from unpoison.brokers.kafka.names import REPLAYS, SUSPECTS, Names, used_sources, with_groups
from unpoison.brokers.kafka.topology import create_commands, planned_topics
from unpoison.model.wording import counted
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = (*checks.NAMES, "settled-retries", "topics-missing", "source-missing", "many-dead-letters")
DEEP = ()
MANY_SETTLED = 1_000_000

Topics = Mapping[str, TopicMetadata]


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All that is found with this prefix and group, or for every group. Nothing here takes long, so `deep` adds nothing."""
    with closing(KafkaBroker(url)) as broker:
        topics = broker.connection.queries.topics()
        known = used_sources(topics, broker.connection.address)
        found = list(_of_server(broker))
        found += _of_names(broker, sources, known, topics)
        for source in sources or known:
            # Where no group has consumed the source, check the topics that need none.
            for names in with_groups(broker.connection.names(source), topics):
                found += _of_source(broker, names, topics) if names.topic in topics else ()
        return list(dict.fromkeys(found))  # groups share some topics: report each finding once


def _of_names(broker: KafkaBroker, sources: Sequence[str], known: Sequence[str], topics: Topics) -> Iterator[Finding]:
    """About sources without a topic, and topics with similar names. A topic that unpoison never used counts as there."""
    prefix = broker.connection.address.prefix
    there = [name.removeprefix(prefix) for name in topics if name.startswith(prefix)]
    for source in sources:
        if source not in there:
            similar = difflib.get_close_matches(source, there)
            yield from findings.of_sources([source], {*known, *similar}, broker.connection.address.shown)


def known_sources(url: str) -> Sequence[str]:
    """The sources that this cluster has been used for, with the prefix of this URL."""
    with closing(KafkaBroker(url)) as broker:
        return used_sources(broker.connection.queries.topics(), broker.connection.address)


def _of_source(broker: KafkaBroker, names: Names, topics: Topics) -> Iterator[Finding]:
    there = {name: topics[name] for name in names.topics if name in topics}
    yield from _of_missing(broker, names, there)
    try:
        known = topic_settings(broker.connection.queries, there)
    except KafkaException as error:
        right = f"kafka-acls.sh --add --operation DescribeConfigs --topic {names.topic} --resource-pattern-type prefixed"
        yield findings.cannot_look(f"the settings of topic {names.topic!r}", f"{error_text(error.args[0])}.", right)
        return
    yield from _losses(broker, names, there, known)
    partitions = len(there[names.retry].partitions) if names.group_name and names.retry in there else 0
    yield from checks.retry_and_dlq(names, known, partitions)
    if names.dlq in there:
        dead = {names.source: broker.letter_states(names.source).dead}
        yield from findings.of_dead_letters(dead, broker.connection.address.shown)
    if partitions:
        yield from _settled_retries(broker, names, partitions)


def _of_missing(broker: KafkaBroker, names: Names, there: Topics) -> Iterator[Finding]:
    """Before the first run everything but the source is missing; later it means that they were deleted."""
    address = broker.connection.address
    missing = {name: topic for name, topic in planned_topics(names, address, there).items() if name not in there}
    if missing:
        group = f" of group {names.group_name!r}" if names.group_name else ""
        yield Finding(
            "topics-missing",
            f"Source {names.source!r}{group} has no topic {', '.join(map(repr, missing))} yet. A consumer that starts "
            f"creates them; with create=False it does not start.",
            "\n".join(["To create it yourself:", *create_commands(missing.values(), address)]),
        )


def adopted(url: str, source: str) -> Sequence[Finding]:
    """The findings that lose messages. Dead letters are not read: that may take long."""
    with closing(KafkaBroker(url)) as broker:
        names, topics = broker.connection.names(source), broker.connection.queries.topics()
        there = {name: topics[name] for name in names.topics if name in topics}
        if names.topic not in there:
            return []
        try:
            known = topic_settings(broker.connection.queries, there)
        except KafkaException as error:
            raise unavailable(error, f"asking for the settings of topic {names.topic!r}") from None
        return list(_losses(broker, names, there, known))


def _losses(broker: KafkaBroker, names: Names, there: Topics, known: Mapping[str, Settings]) -> Iterator[Finding]:
    yield from checks.losses(names, known)
    yield from checks.fewer_copies(there, broker.connection.queries.cluster().brokers)


def _of_server(broker: KafkaBroker) -> Iterator[Finding]:
    try:
        yield from findings.examine(checks.OF_SERVER, server_settings(broker.connection.queries))
    except KafkaException as error:
        right = "kafka-acls.sh --add --cluster --operation DescribeConfigs --allow-principal User:NAME"
        yield findings.cannot_look("the settings of the server", f"{error_text(error.args[0])}.", right)


def _settled_retries(broker: KafkaBroker, names: Names, partitions: int) -> Iterator[Finding]:
    """How far the retry topic can be cut. Nothing there expires, since a retry may wait for any time.

    Everything below the committed offset is done; only a letter that was too large for the DLQ may still have its body there. The
    two partitions in which interrupted replays are looked for are left alone; they are small.
    """
    queries = broker.connection.queries
    places = [(names.retry, number) for number in range(partitions) if number not in (SUSPECTS, REPLAYS)]
    begins = queries.ends(places, first=True)
    # Asked before the DLQ is read: what was done by then has its letter there already.
    committed = {place: offset for place, (offset, _) in queries.committed(names.retry_group, places).items()}
    if sum(max(0, offset - begins[place]) for place, offset in committed.items()) < MANY_SETTLED:
        return
    needed = _bodies_in_retries(broker, names)
    cuts = {place: min(offset, needed.get(place, offset)) for place, offset in committed.items()}
    count = sum(max(0, offset - begins[place]) for place, offset in cuts.items())
    yield Finding(
        "settled-retries",
        f"Topic {names.retry!r} keeps {counted(count, 'record')} of messages that are done: that costs space and nothing else.",
        f"kafka-delete-records.sh --offset-json-file cut.json, with this in cut.json: {_cut_file(cuts, begins)}",
    )


def _bodies_in_retries(broker: KafkaBroker, names: Names) -> dict[PartitionKey, int]:
    """The first offset in each partition at which the body of a waiting letter is."""
    waiting: dict[PartitionKey, set[int]] = {}
    for letter in broker.letter_states(names.source).order:
        if letter.state == DEAD:
            waiting.setdefault(letter.place, set()).add(letter.offset)
    found: dict[PartitionKey, int] = {}
    for record in broker.reader.read({place: (min(offsets), max(offsets) + 1) for place, offsets in waiting.items()}):
        body = body_position(record)
        if body is not None and record.offset() in waiting[record.topic(), record.partition()]:
            place, offset = body
            found[place] = min(offset, found.get(place, offset))
    return found


def _cut_file(cuts: Mapping[PartitionKey, int], begins: Mapping[PartitionKey, int]) -> str:
    partitions = [
        {"topic": topic, "partition": number, "offset": offset}
        for (topic, number), offset in sorted(cuts.items())
        if offset > begins[topic, number]
    ]
    return json.dumps({"partitions": partitions, "version": 1})
