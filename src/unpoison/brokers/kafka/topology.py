"""Which topics does a source need, who creates them, and are they still the same?

Missing topics are created with the settings that they need, unless create=False forbids it. Existing topics are never changed. A
source that was deleted is not created again: only its owner knows its settings.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic, TopicDescription, TopicMetadata

from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, REQUEST_TIMEOUT, ClusterQueries
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.errors import DENIED, error_text, result_within, unavailable, with_permission
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.url import Address
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.events import fields

log = logging.getLogger("unpoison")

Topics = dict[str, TopicMetadata]
THERE_WITHIN = 15.0
NOT_COMPACTED = {"cleanup.policy": "delete"}
"""The cluster's default may be compaction: of messages with equal keys only the last would be kept."""
KEPT_FOR_EVER = NOT_COMPACTED | {"retention.ms": "-1", "retention.bytes": "-1"}
LARGE = {"max.message.bytes": str(16 * 1024 * 1024)}
LARGER = {"max.message.bytes": str(18 * 1024 * 1024)}
"""A letter is larger than its message."""
SERVER_TIME = {"message.timestamp.type": "LogAppendTime"}


def planned_topics(names: Names, address: Address, found: Mapping[str, TopicMetadata] = {}) -> dict[str, NewTopic]:
    """The topics of a source as they are created; `found` are those that exist.

    Ours have as many replicas as a source that exists: a retry or a dead letter must not be lost more easily than its
    message.
    """
    configs = {names.topic: (address.partitions, NOT_COMPACTED | LARGE)}
    if names.group_name:
        configs[names.retry] = (PARTITIONS, KEPT_FOR_EVER | LARGER | SERVER_TIME)
    configs[names.dlq] = (1, KEPT_FOR_EVER | LARGER)
    configs[names.states] = (1, SERVER_TIME | {"cleanup.policy": "compact"})
    replicas = address.replicas
    if replicas < 0 and names.topic in found:
        replicas = replica_count(found[names.topic])
    return {name: NewTopic(name, partitions, replicas, config=config) for name, (partitions, config) in configs.items()}


def create_commands(topics: Collection[NewTopic], address: Address) -> list[str]:
    """The commands by which an administrator creates these."""
    server = f"--bootstrap-server {address.options['bootstrap.servers']}"
    return [f"kafka-topics.sh {server} --create {create_options(topic)}" for topic in topics]


def create_options(topic: NewTopic) -> str:
    """The options of kafka-topics.sh for it. Where no number is given, the server decides."""
    numbers = {"--partitions": topic.num_partitions, "--replication-factor": topic.replication_factor}
    options = [f"{option} {number}" for option, number in numbers.items() if number > 0]
    options += [f"--config {name}={value}" for name, value in (topic.config or {}).items()]
    return " ".join(["--topic", topic.topic, *options])


def what_was_lost(names: Names, topic: str) -> str:
    """What was lost with a deleted topic."""
    return {
        names.retry: "the retries that waited in it are lost",
        names.dlq: "the dead letters in it are lost",
        names.states: "letters that were replayed or discarded before count as dead again",
    }.get(topic, "its messages are lost")


def replica_count(topic: TopicMetadata) -> int:
    """On how many servers each of its messages is stored."""
    return min(len(partition.replicas) for partition in topic.partitions.values())


class Topology:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._there: set[str] = set()
        self._partitions: dict[str, int] = {}
        self.created: set[str] = set()
        """Sources that were created, until `publish` has reported them."""

    def ensure(self, source: str, *, to_publish: bool = False, to_consume: bool = False) -> None:
        """Create what a source needs. A publisher without a group, or with create=False, needs the source alone. With
        create=False a consumer is refused unless all topics exist; an operator works with those that do."""
        names = self._connection.names(source)
        wanted = names.topics if not to_publish or (names.group_name and self._connection.create) else (names.topic,)
        if self._there.issuperset(wanted):
            return
        found = self._look(wanted)
        if missing := [name for name in wanted if name not in found]:
            self._check_sight(missing)
            if not self._connection.create:
                self._refuse(names, missing, found, "publish" if to_publish else "consume" if to_consume else "look")
                return
            # The source first: the server that was asked may not know yet that it has just been created.
            found |= self._make(names, [names.topic], found)
            found |= self._make(names, wanted, found)
        self._there.update(wanted)
        self._partitions |= {name: len(topic.partitions) for name, topic in found.items()}
        if names.group_name and names.retry in wanted and self._partitions[names.retry] < PARTITIONS:
            raise ConfigError(
                f"Topic {names.retry!r} has {self._partitions[names.retry]} partitions, and unpoison needs {PARTITIONS} in it, "
                f"one for each purpose. Add them: kafka-topics.sh --alter --topic {names.retry} --partitions {PARTITIONS}"
            )

    def make_again(self, names: Names, needed: Collection[str]) -> list[str]:
        """Create topics again that were deleted while a consumer runs; returns those that were created. Raises
        BrokerUnavailable, which pauses the source, for a topic that is not ours to create."""
        found = self._connection.queries.topics()
        missing = [name for name in names.topics if name in needed and name not in found]
        self.forget(names.topics)
        if names.topic in missing or (missing and not self._connection.create):
            raise BrokerUnavailable(self._deleted(names, missing, found))
        self._partitions |= {name: len(topic.partitions) for name, topic in self._make(names, missing, found).items()}
        for name in missing:
            extra = fields("topic-made", source=names.source, topic=name)
            text = "Source %r: topic %r was deleted, and %s. It was created again, and the source continues."
            log.warning(text, names.source, name, what_was_lost(names, name), extra=extra)
        return missing

    def _deleted(self, names: Names, missing: Sequence[str], found: Topics) -> str:
        if names.topic in missing:
            return (
                f"{self._listed(missing)}: the source was deleted. unpoison does not create it again, since only its "
                f"owner knows its settings. Once it exists, its messages are consumed from the first one on."
            )
        return f"{self._listed(missing)}, and create=False forbids creating what is missing. {self._how(names, missing, found)}"

    def _listed(self, missing: Sequence[str]) -> str:
        many, verb = ("Topic", "is") if len(missing) == 1 else ("Topics", "are")
        return f"{many} {', '.join(map(repr, missing))} {verb} missing at {self._connection.address.shown}"

    def _how(self, names: Names, missing: Sequence[str], found: Topics) -> str:
        wanted = planned_topics(names, self._connection.address, found)
        lines = create_commands([wanted[name] for name in missing], self._connection.address)
        return "Create it with:" + "".join(f"\n  {line}" for line in lines)

    def forget(self, topics: Collection[str]) -> None:
        """These were deleted, or replaced."""
        self._there.difference_update(topics)
        for name in topics:
            self._partitions.pop(name, None)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 if it does not exist."""
        if topic not in self._partitions:
            self._partitions |= {name: len(each.partitions) for name, each in self._look([topic]).items()}
        return self._partitions.get(topic, 0)

    def _look(self, topics: Collection[str]) -> Topics:
        known = self._connection.queries.topics().items()
        return {
            name: topic for name, topic in known if name in topics and all(each.leader >= 0 for each in topic.partitions.values())
        }

    def _check_sight(self, topics: list[str]) -> None:
        """A topic that this user may not see looks missing, until it is asked for by name."""
        for name, answer in self._connection.queries.admin.describe_topics(
            TopicCollection(topics), request_timeout=ANSWER_WITHIN
        ).items():
            try:
                result_within(answer, 2 * ANSWER_WITHIN)
            except KafkaException as error:
                if error.args[0].code() in DENIED:
                    right = with_permission(error.args[0], f"Describe on topic {name!r}")
                    raise unavailable(KafkaException(right), f"looking for topics at {self._connection.address.shown}") from None

    def _refuse(self, names: Names, missing: Sequence[str], found: Topics, purpose: str) -> None:
        if purpose != "look":
            what = f"Consumer {names.source!r} does not start" if purpose == "consume" else f"{names.source!r} takes no message"
            how = self._how(names, missing, found)
            raise ConfigError(f"{what}: create=False forbids creating what is missing. {self._listed(missing)}. {how}")
        if names.topic not in found and names.dlq not in found:
            raise ConfigError(
                f"There is no topic {names.topic!r} at {self._connection.address.shown}, so it has no messages and no dead "
                f"letters. See what is there: kafka-topics.sh --list"
            )

    def _make(self, names: Names, wanted: Collection[str], found: Mapping[str, TopicMetadata]) -> Topics:
        topics = [
            topic
            for name, topic in planned_topics(names, self._connection.address, found).items()
            if name in wanted and name not in found
        ]
        answers = self._connection.queries.admin.create_topics(topics, request_timeout=ANSWER_WITHIN) if topics else {}
        for name, answer in answers.items():
            try:
                result_within(answer, 2 * ANSWER_WITHIN)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    why = error_text(with_permission(error.args[0], f"Create on topic {name!r}"))
                    raise BrokerUnavailable(
                        f"Topic {name!r} is missing and could not be created: {why}. Create it, or allow it: see the page "
                        f"about Kafka."
                    ) from None
            else:
                self.created |= {names.source} if name == names.topic else set()
        return self._wait_for(wanted) if topics else {}

    def _wait_for(self, wanted: Collection[str]) -> Topics:
        """Not every server knows a new topic at once."""
        deadline = time.monotonic() + THERE_WITHIN
        while len(found := self._look(wanted)) < len(wanted):
            if time.monotonic() > deadline:
                without = next(name for name in wanted if name not in found)
                raise BrokerUnavailable(
                    f"No server leads topic {without!r}: those that have it are away, or it has just been created. Try again."
                )
            time.sleep(0.02)
        return found


LOOK_EVERY = 1.0
LOOK_AGAIN = 0.2
"""Seconds until a change is looked at again: a server that has just started may not know all topics yet."""
MISSING = "missing"
UNKNOWN = ""
"""The id where the server has none (before 2.8)."""
NULL = "AAAAAAAAAAAAAAAAAAAAAA"
"""How a server without ids answers."""


class TopicWatch:
    """Notices deleted topics, and new ones of the same name. Looks once a second, and no thread waits for it.

    The client says nothing: after a topic was deleted it waits in silence, and in a new one of that name it goes on at the old
    offset, past messages that were not handled. The server gives each topic an id, so we ask for that.
    """

    def __init__(self, queries: ClusterQueries, topics: Sequence[str]) -> None:
        self._queries, self._topics = queries, topics
        self._lock = threading.Lock()
        self._asked: Mapping[str, Future[TopicDescription]] = {}
        self._not_before = 0.0
        self._ids: dict[str, str] = {}
        self._doubted: dict[str, str] = {}
        self.missing: frozenset[str] = frozenset()
        self.replaced: set[str] = set()
        """Topics that another program has deleted and created again, until their settings were checked."""

    def id_of(self, topic: str) -> str | None:
        """The id of a topic as it is now, or MISSING; None before the first answer."""
        return self._ids.get(topic)

    def look_soon(self) -> None:
        """A topic may have changed."""
        self._not_before = 0.0

    def forget_missing(self) -> None:
        """They exist again. The next look learns their ids."""
        with self._lock:
            self._ids = {name: id_ for name, id_ in self._ids.items() if id_ != MISSING}
            self.missing = frozenset()
        self.look_soon()

    def tick(self) -> None:
        if time.monotonic() < self._not_before and not self._asked:
            return
        with self._lock:
            if self._asked:
                if all(answer.done() for answer in self._asked.values()):
                    answers, self._asked = self._asked, {}
                    self._not_before = time.monotonic() + (LOOK_AGAIN if self._learn(answers) else LOOK_EVERY)
            elif time.monotonic() >= self._not_before:
                self._asked = self._queries.admin.describe_topics(
                    TopicCollection(list(self._topics)), request_timeout=REQUEST_TIMEOUT
                )

    def _learn(self, answers: Mapping[str, "Future[TopicDescription]"]) -> bool:
        """Whether there is a change that must be looked at again."""
        found = {name: id_ for name, answer in answers.items() if (id_ := _id(answer)) is not None}
        changed = {name: id_ for name, id_ in found.items() if self._ids.get(name, id_) != id_}
        before = dict(self._ids)
        self._ids |= {name: id_ for name, id_ in found.items() if name not in changed or self._doubted.get(name) == id_}
        self._doubted = {name: id_ for name, id_ in changed.items() if self._ids[name] != id_}
        self.missing = frozenset(name for name, id_ in self._ids.items() if id_ == MISSING)
        self.replaced |= {name for name, id_ in self._ids.items() if before.get(name, id_) != id_ != MISSING}
        return bool(self._doubted)


def _id(answer: "Future[TopicDescription]") -> str | None:
    """None if no server has answered: then nothing has changed."""
    try:
        id_ = str(answer.result(0).topic_id)
    except KafkaException as error:
        return MISSING if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None
    return UNKNOWN if id_ == NULL else id_
