"""What must be there before messages can flow, and who makes it?

What is missing is made, unless that is forbidden. What is there is never changed.
"""

import time
from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic, TopicMetadata

from unpoison.brokers.kafka.asking import ANSWER_WITHIN
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.session import Session
from unpoison.brokers.kafka.troubles import DENIED, answered, lacking, told, unavailable
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.ports import Finding

KEPT_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}
LARGE = {"max.message.bytes": str(16 * 1024 * 1024)}
LARGER = {"max.message.bytes": str(18 * 1024 * 1024)}
"""A letter is its message and more."""
SERVER_TIME = {"message.timestamp.type": "LogAppendTime"}
THERE_WITHIN = 15.0


class Topology:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._there: set[str] = set()
        self._partitions: dict[str, int] = {}
        self.created: set[str] = set()
        """Sources that were not there before, until publishing has said so."""

    def ensure(self, source: str, *, to_publish: bool = False) -> list[Finding]:
        """Have everything that a source needs. A publisher without a group needs the source alone."""
        names = self._session.names(source)
        wanted = names.topics if names.group_name or not to_publish else (names.topic,)
        if self._there.issuperset(wanted):
            return []
        found = self._look(wanted)
        if missing := [name for name in wanted if name not in found]:
            self._check_sight(missing)
            if not self._session.create:
                self._refuse(names, found)
                return []
            # The source first: one that somebody has made just now may not be known to the server that was asked.
            found |= self._make(names, [names.topic], found)
            found |= self._make(names, wanted, found)
        self._there.update(wanted)
        self._partitions |= {name: len(topic.partitions) for name, topic in found.items()}
        if names.group_name and self._partitions[names.retry] < PARTITIONS:
            raise ConfigError(
                f"Topic {names.retry!r} has {self._partitions[names.retry]} partitions, and unpoison needs {PARTITIONS} in it, "
                f"one for each purpose. Add them: kafka-topics.sh --alter --topic {names.retry} --partitions {PARTITIONS}"
            )
        return []

    def partitions(self, topic: str) -> int:
        """How many there are; 0 if the topic is not there."""
        if topic not in self._partitions:
            self._partitions |= {name: len(each.partitions) for name, each in self._look([topic]).items()}
        return self._partitions.get(topic, 0)

    def _made(self, names: Names, found: Mapping[str, TopicMetadata]) -> dict[str, NewTopic]:
        """The topics as they are made. Ours have as many copies as a source that is there already: what a retry or a dead letter
        stands for must not be lost more easily than its message."""
        address = self._session.address
        configs = {names.topic: (address.partitions, LARGE)}
        if names.group_name:
            configs[names.retry] = (PARTITIONS, KEPT_FOR_EVER | LARGER | SERVER_TIME)
        configs[names.dlq] = (1, KEPT_FOR_EVER | LARGER)
        configs[names.states] = (1, SERVER_TIME | {"cleanup.policy": "compact"})
        replicas = address.replicas
        if replicas < 0 and names.topic in found:
            replicas = copies(found[names.topic])
        return {name: NewTopic(name, partitions, replicas, config=config) for name, (partitions, config) in configs.items()}

    def _look(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        known = self._session.cluster().topics
        return {
            name: topic
            for name, topic in known.items()
            if name in topics and topic.partitions and all(each.leader >= 0 for each in topic.partitions.values())
        }

    def _check_sight(self, topics: list[str]) -> None:
        """A topic that this user may not see looks like one that is missing, until it is asked for by its name."""
        for name, answer in self._session.admin.describe_topics(TopicCollection(topics), request_timeout=ANSWER_WITHIN).items():
            try:
                answered(answer, 2 * ANSWER_WITHIN)
            except KafkaException as error:
                if error.args[0].code() in DENIED:
                    right = lacking(error.args[0], f"Describe on topic {name!r}")
                    raise unavailable(KafkaException(right), f"looking for topics at {self._session.address.shown}") from None

    def _refuse(self, names: Names, found: Mapping[str, TopicMetadata]) -> None:
        if names.topic not in found and names.dlq not in found:
            raise ConfigError(
                f"There is no topic {names.topic!r} at {self._session.address.shown}, so it has no messages and no dead letters. "
                f"See what is there: kafka-topics.sh --list"
            )

    def _make(self, names: Names, wanted: Collection[str], found: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
        topics = [topic for name, topic in self._made(names, found).items() if name in wanted and name not in found]
        answers = self._session.admin.create_topics(topics, request_timeout=ANSWER_WITHIN) if topics else {}
        for name, answer in answers.items():
            try:
                answered(answer, 2 * ANSWER_WITHIN)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    why = told(lacking(error.args[0], f"Create on topic {name!r}"))
                    raise BrokerUnavailable(
                        f"Topic {name!r} is missing and could not be made: {why}. Make it, or allow it: see the page about Kafka."
                    ) from None
            else:
                self.created |= {names.source} if name == names.topic else set()
        return self._wait_for(wanted) if topics else {}

    def _wait_for(self, wanted: Collection[str]) -> dict[str, TopicMetadata]:
        """A topic that was made is not known to every server at once."""
        deadline = time.monotonic() + THERE_WITHIN
        while len(found := self._look(wanted)) < len(wanted):
            if time.monotonic() > deadline:
                without = next(name for name in wanted if name not in found)
                raise BrokerUnavailable(
                    f"No server leads topic {without!r}: those that have it are away, or it was made just now. Try again."
                )
            time.sleep(0.02)
        return found


def copies(topic: TopicMetadata) -> int:
    """On how many servers each of its messages is."""
    return min(len(partition.replicas) for partition in topic.partitions.values())
