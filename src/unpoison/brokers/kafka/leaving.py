"""What does unpoison leave in a cluster, how is it removed, and how do waiting messages get back into their source?

Retries wait in the group's retry topic, which no other consumer reads. To move one back, it is stored in its source, confirmed,
and then counts as done in the retry topic. A kill in between leaves it in both places, under one id; it is never lost.
"""

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka import commit_metadata, envelope
from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, PartitionKey
from unpoison.brokers.kafka.envelope import HOLDER, ID, REF, NewRecord, Record, due_at, header, read_envelope_safely
from unpoison.brokers.kafka.errors import error_text, result_within, unavailable
from unpoison.brokers.kafka.names import HELD, PARTITIONS, REPLAYS, SUSPECTS, Names, groups_of, used_sources, with_groups
from unpoison.brokers.kafka.partition import Partition
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Leftovers, Progress

PAGE = 500
LOOK_EVERY = 0.2
CONFIRMED_WITHIN = 10.0


class Page(NamedTuple):
    """Some records of a partition, and those of them that stand for waiting messages."""

    partition: Partition
    records: Sequence[Record]
    waiting: Sequence[Record]

    def done(self) -> TopicPartition | None:
        """Count all of them as done. Returns what to commit for that."""
        for record in self.records:
            self.partition.finish(record.offset())
        position = self.partition.position()
        return None if position is None else self.partition.to_commit(position)


def waiting_pages(broker: KafkaBroker, names: Names, number: int) -> Iterator[Page]:
    """The records of a partition that are not done. No consumer may run meanwhile."""
    place, queries = (names.retry, number), broker.connection.queries
    if broker.topology.partitions(names.retry) <= number:
        return
    begin, end = queries.bounds([place])[place]
    offset, metadata = queries.committed(names.retry_group, [place]).get(place, (begin, None))
    partition, start = Partition(*place), max(begin, offset)
    partition.take_over(offset, metadata)
    ended = _finished_elsewhere(broker, place, begin if number in (SUSPECTS, REPLAYS) else start, end)
    records = broker.reader.read({place: (start, end)})
    while page := list(itertools.islice(records, PAGE)):
        yield Page(partition, page, [record for record in partition.arrive(page) if _is_waiting(record, ended)])


def _finished_elsewhere(broker: KafkaBroker, place: PartitionKey, start: int, end: int) -> Collection[str]:
    """References and claims of records that are done all the same: their holder has settled them, or a replay was cancelled."""
    if place[1] == HELD:
        notes = broker.reader.read({place: (start, end)})
        return {header(record, REF) or "" for record in notes if header(record, HOLDER) is None}
    if place[1] not in (SUSPECTS, REPLAYS):
        return ()
    records = list(broker.reader.read({place: (start, end)}))
    claims = {nonce for record in records if (nonce := envelope.claim_of(record)[0])}
    return claims - envelope.valid_claims(records)


def _is_waiting(record: Record, ended: Collection[str]) -> bool:
    if record.partition() == HELD:
        return header(record, HOLDER) is not None and (header(record, REF) or "") not in ended
    return not header(record, envelope.CANCELLED) and (envelope.claim_of(record)[0] or None) not in ended


def leftovers(url: str, sources: Sequence[str] = ()) -> Sequence[Leftovers]:
    with closing(KafkaBroker(url)) as broker:
        prefix = broker.connection.address.prefix
        topics = {name for name in broker.connection.queries.topics() if name.startswith(prefix)}
        chosen = list(_sources_and_groups(broker, sources, topics))
        return [_leftovers_of(broker, names, topics, chosen) for names in chosen]


def _sources_and_groups(broker: KafkaBroker, sources: Sequence[str], topics: Collection[str]) -> Iterator[Names]:
    """Each source with the group of the URL, or with all groups that consumed it with unpoison."""
    address = broker.connection.address
    retry = f".{address.group}.retry"
    used = {*used_sources(topics, address)}
    if address.group:
        used |= {name.removesuffix(retry).removeprefix(address.prefix) for name in topics if name.endswith(retry)}
    for source in sources or sorted(used):
        yield from with_groups(broker.connection.names(source), topics)


def _leftovers_of(broker: KafkaBroker, names: Names, topics: Collection[str], chosen: Sequence[Names]) -> Leftovers:
    waiting = list(_waiting(broker, names)) if names.group_name and names.retry in topics else []
    now = broker.connection.now()
    ours, groups = _topics(names, topics, chosen), _groups(broker, names, topics, chosen)
    server = f"--bootstrap-server {broker.connection.address.options['bootstrap.servers']}"
    return Leftovers(
        names.source,
        names.group_name,
        waiting=len(waiting),
        later=sum(when > now for when, _ in waiting),
        suspects=sum(alone for _, alone in waiting),
        repeats=_repeats(broker, names) if names.topic in topics else 0,
        dead=broker.letter_states(names.source).dead if names.dlq in topics else 0,
        topics=ours,
        groups=groups,
        removal=(
            *(f"kafka-topics.sh {server} --delete --topic {name}" for name in ours),
            *(f"kafka-consumer-groups.sh {server} --delete --group {name}" for name in groups),
        ),
    )


def _waiting(broker: KafkaBroker, names: Names) -> Iterator[tuple[float, bool]]:
    """For each waiting message, when it is due and whether it must run alone."""
    for number in range(PARTITIONS):
        for page in waiting_pages(broker, names, number):
            yield from ((due_at(record), read_envelope_safely(record).counters.alone) for record in page.waiting)


def _repeats(broker: KafkaBroker, names: Names) -> int:
    """How many done messages other consumers would repeat: those behind the first unfinished one, which is all they see."""
    places = [(names.topic, number) for number in range(broker.topology.partitions(names.topic))]
    committed = broker.connection.queries.committed(names.group, places).values()
    known = [commit_metadata.decode(*each) for each in committed]
    return sum(state.top - min(state.losses) - len(state.losses) for state in known if state.losses)


def _topics(names: Names, topics: Collection[str], chosen: Sequence[Names]) -> tuple[str, ...]:
    """Our topics, without those that other groups of the source need."""
    leaving = {each.group_name for each in chosen if each.source == names.source}
    shared = [] if set(groups_of(names, topics)) - leaving else [names.dlq, names.states]
    return tuple(name for name in ([names.retry] if names.group_name else []) + shared if name in topics)


def _groups(broker: KafkaBroker, names: Names, topics: Collection[str], chosen: Sequence[Names]) -> tuple[str, ...]:
    """Our groups, without those that other sources of the group need: all of them share one."""
    ending = f".{names.group_name}.retry"
    leaving = {each.retry for each in chosen if each.group_name}
    if not names.group_name or any(name.endswith(ending) and name not in leaving for name in topics):
        return ()
    try:
        answer = broker.connection.queries.admin.list_consumer_groups(request_timeout=ANSWER_WITHIN)
        listed = result_within(answer, 2 * ANSWER_WITHIN)
    except KafkaException as error:
        raise unavailable(error, "listing groups") from None
    known = (each.group_id for each in listed.valid)
    ours = (names.retry_group, names.reading)
    return tuple(sorted(group for group in known if group in ours or group.startswith(f"{names.operators}.")))


def move_back(url: str, left: Leftovers, within: float, progress: Progress | None = None) -> int:
    with closing(KafkaBroker(url)) as broker:
        names = broker.connection.names(left.source)._replace(group_name=left.group)
        if not broker.topology.partitions(names.topic):
            raise ConfigError(
                f"There is no topic {names.topic!r} at {broker.connection.address.shown}, so no message can be moved back "
                f"into it. Create it, or delete {names.retry!r} with all messages that wait in it."
            )
        _wait_until_consumers_stopped(broker, names, within)
        with closing(Committer(broker, names)) as committer:
            return _move_pages(broker, names, committer, progress, left.waiting)


def _move_pages(broker: KafkaBroker, names: Names, committer: "Committer", progress: Progress | None, total: int) -> int:
    moved = 0
    for page in itertools.chain.from_iterable(waiting_pages(broker, names, number) for number in range(PARTITIONS)):
        broker.connection.must_store([_original_message(names, record) for record in page.waiting], "moving messages back")
        moved += len(page.waiting)
        committer.commit(page, moved)
        if progress is not None and page.waiting:
            progress(moved, max(moved, total))
    return moved


def _original_message(names: Names, record: Record) -> NewRecord:
    """The message as it was published: of our headers it keeps only the id."""
    seen = envelope.read_envelope_safely(record)
    id_ = [] if seen.id == seen.stamp.partition("@")[0] else [(ID, seen.id.encode())]
    return NewRecord(names.topic, record.value(), record.key(), [*id_, *envelope.sender_headers(record)])


def _wait_until_consumers_stopped(broker: KafkaBroker, names: Names, within: float) -> None:
    """Only consumers of unpoison are in the group of the retry topic. Other consumers may run already."""
    deadline = time.monotonic() + within
    while there := broker.connection.queries.members(names.retry_group):
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"Group {names.group!r} still has {counted(len(there), 'client')} that consume with unpoison "
                f"({', '.join(sorted(there))}), and the waiting messages are theirs. Nothing was moved. Stop them, "
                f"and run this again."
            )
        time.sleep(LOOK_EVERY)


class Committer:
    """Commits for the group of a retry topic. Kafka allows that only while the group has no members."""

    def __init__(self, broker: KafkaBroker, names: Names) -> None:
        self._names = names
        self._answers: list[KafkaError | None] = []
        settings = broker.connection.settings.committer(names.retry_group)
        self._client = Consumer({**settings, "on_commit": self._hear})

    def _hear(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        self._answers.append(error or next((each.error for each in places if each.error), None))

    def commit(self, page: Page, moved: int) -> None:
        place = page.done()
        if place is None:
            return
        self._answers.clear()
        error: KafkaError | None = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - it has no other name
        try:
            self._client.commit(offsets=[place], asynchronous=True)
            deadline = time.monotonic() + CONFIRMED_WITHIN
            while not self._answers and time.monotonic() < deadline:
                self._client.poll(0.05)
            error = self._answers[0] if self._answers else error
        except KafkaException as raised:
            error = raised.args[0]
        if error is not None:
            raise BrokerUnavailable(
                f"Moved back to {self._names.source!r}: {counted(moved, 'message')}, but Kafka does not confirm that the last "
                f"{len(page.waiting)} of them are done in {self._names.retry!r}: {error_text(error)}. If a consumer has started "
                f"meanwhile, stop it. Run this again: no message is lost, and those may be moved twice, under their ids."
            )

    def close(self) -> None:
        self._client.close()
