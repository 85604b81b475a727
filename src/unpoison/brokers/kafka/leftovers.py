"""What has unpoison at these servers, and how is it removed? Looking changes nothing."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing

from confluent_kafka import KafkaException

from unpoison.brokers.kafka import runs
from unpoison.brokers.kafka.asking import ANSWER_WITHIN
from unpoison.brokers.kafka.books import DEAD
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.envelope import due, look_safely
from unpoison.brokers.kafka.names import PARTITIONS, Names, groups_of, used_sources
from unpoison.brokers.kafka.record import Record
from unpoison.brokers.kafka.troubles import answered, unavailable
from unpoison.brokers.kafka.waiting_records import pages
from unpoison.port.broker import Leftovers


def leftovers(url: str, sources: Sequence[str] = ()) -> Sequence[Leftovers]:
    with closing(KafkaBroker(url)) as broker:
        prefix = broker.session.address.prefix
        there = broker.session.cluster().topics.items()
        topics = {name for name, topic in there if topic.partitions and name.startswith(prefix)}
        chosen = list(_chosen(broker, sources, topics))
        return [_of(broker, names, topics, chosen) for names in chosen]


def _chosen(broker: KafkaBroker, sources: Sequence[str], topics: Collection[str]) -> Iterator[Names]:
    """The sources with each group that is meant: that of the URL, or all that consumed with unpoison."""
    address = broker.session.address
    retry = f".{address.group}.retry"
    used = {*used_sources(topics, address.prefix)}
    if address.group:
        used |= {name.removesuffix(retry).removeprefix(address.prefix) for name in topics if name.endswith(retry)}
    for source in sources or sorted(used):
        names = broker.session.names(source)
        for group in [names.group_name] if names.group_name else groups_of(names, topics) or [""]:
            yield names._replace(group_name=group)


def _of(broker: KafkaBroker, names: Names, topics: Collection[str], chosen: Sequence[Names]) -> Leftovers:
    waiting = list(_waiting(broker, names)) if names.group_name and names.retry in topics else []
    now = broker.session.now()
    dead = 0
    if names.dlq in topics:
        dead = sum(entry.state == DEAD for entry in broker.books(names.source).entries.values())
    ours, groups = _topics(names, topics, chosen), _groups(broker, names, topics, chosen)
    server = f"--bootstrap-server {broker.session.address.options['bootstrap.servers']}"
    return Leftovers(
        names.source,
        names.group_name,
        waiting=len(waiting),
        later=sum(when > now for when, _ in waiting),
        suspects=sum(alone for _, alone in waiting),
        repeats=_repeats(broker, names) if names.topic in topics else 0,
        dead=dead,
        topics=ours,
        groups=groups,
        removal=(
            *(f"kafka-topics.sh {server} --delete --topic {name}" for name in ours),
            *(f"kafka-consumer-groups.sh {server} --delete --group {name}" for name in groups),
        ),
    )


def _waiting(broker: KafkaBroker, names: Names) -> Iterator[tuple[float, bool]]:
    """When each message that waits is due, and whether it is to run alone."""
    for number in range(PARTITIONS):
        for page in pages(broker, names, number):
            yield from map(_gist, page.waiting)


def _gist(record: Record) -> tuple[float, bool]:
    return due(record), look_safely(record).counters.alone


def _repeats(broker: KafkaBroker, names: Names) -> int:
    """Our commits say which messages behind the first unfinished one are done; others read the offset alone."""
    places = [(names.topic, number) for number in range(broker.topology.partitions(names.topic))]
    known = [runs.read(*committed) for committed in broker.session.committed(names.group, places).values()]
    return sum(state.top - min(state.levels) - len(state.levels) for state in known if state.levels)


def _topics(names: Names, topics: Collection[str], chosen: Sequence[Names]) -> tuple[str, ...]:
    """Ours, without those that other groups of the source need."""
    leaving = {each.group_name for each in chosen if each.source == names.source}
    shared = [] if set(groups_of(names, topics)) - leaving else [names.dlq, names.states]
    return tuple(name for name in ([names.retry] if names.group_name else []) + shared if name in topics)


def _groups(broker: KafkaBroker, names: Names, topics: Collection[str], chosen: Sequence[Names]) -> tuple[str, ...]:
    """Ours, without those that other sources of the group need: all of them share one."""
    ending = f".{names.group_name}.retry"
    leaving = {each.retry for each in chosen if each.group_name}
    if not names.group_name or any(name.endswith(ending) and name not in leaving for name in topics):
        return ()
    try:
        listed = answered(broker.session.admin.list_consumer_groups(request_timeout=ANSWER_WITHIN), 2 * ANSWER_WITHIN)
    except KafkaException as error:
        raise unavailable(error, "listing groups") from None
    known = (each.group_id for each in listed.valid)
    ours = (names.retry_group, f"{names.group}.reading")
    return tuple(sorted(group for group in known if group in ours or group.startswith(f"{names.operators}.")))
