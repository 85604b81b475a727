"""What must be there before messages can flow, and who makes it?

What is missing is made, unless that is forbidden. What is there is never changed.
"""

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic, TopicMetadata

from bezoar.brokers.kafka.names import PARTITIONS, Names
from bezoar.brokers.kafka.session import ANSWER_WITHIN, Session
from bezoar.brokers.kafka.troubles import DENIED, lacking, told, unavailable
from bezoar.errors import BrokerUnavailable, ConfigError
from bezoar.ports import Finding

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

    def ensure(self, source: str) -> list[Finding]:
        names = self._session.names(source)
        if source in self._there:
            return []
        wanted = self._wanted(names)
        found = self._look(wanted)
        if missing := [topic for name, topic in wanted.items() if name not in found]:
            self._check_sight([topic.topic for topic in missing])
            if not self._session.create:
                self._refuse(names, found)
                return []
            self._make(missing)
            found = self._wait_for(wanted)
        self._there.add(source)
        self._partitions |= {name: len(topic.partitions) for name, topic in found.items()}
        if self._partitions[names.retry] < PARTITIONS:
            raise ConfigError(
                f"Topic {names.retry!r} has {self._partitions[names.retry]} partitions, and bezoar needs {PARTITIONS} in it, "
                f"one for each purpose. Add them: kafka-topics.sh --alter --topic {names.retry} --partitions {PARTITIONS}"
            )
        return []

    def partitions(self, topic: str) -> int:
        """How many there are; 0 if the topic is not there."""
        if topic not in self._partitions:
            self._partitions |= {name: len(each.partitions) for name, each in self._look([topic]).items()}
        return self._partitions.get(topic, 0)

    def _wanted(self, names: Names) -> dict[str, NewTopic]:
        address = self._session.address
        configs = {
            names.topic: (address.partitions, LARGE),
            names.retry: (PARTITIONS, KEPT_FOR_EVER | LARGER | SERVER_TIME),
            names.dlq: (1, KEPT_FOR_EVER | LARGER),
            names.states: (1, SERVER_TIME | {"cleanup.policy": "compact"}),
        }
        return {
            name: NewTopic(name, partitions, address.replicas, config=config) for name, (partitions, config) in configs.items()
        }

    def _look(self, topics: Mapping[str, object] | list[str]) -> dict[str, TopicMetadata]:
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
                answer.result(2 * ANSWER_WITHIN)
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

    def _make(self, topics: list[NewTopic]) -> None:
        answers = self._session.admin.create_topics(topics, request_timeout=ANSWER_WITHIN)
        for name, answer in answers.items():
            try:
                answer.result(2 * ANSWER_WITHIN)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    why = told(lacking(error.args[0], f"Create on topic {name!r}"))
                    raise BrokerUnavailable(
                        f"Topic {name!r} is missing and could not be made: {why}. Make it, or allow it: see the page about Kafka."
                    ) from None

    def _wait_for(self, wanted: Mapping[str, NewTopic]) -> dict[str, TopicMetadata]:
        """A topic that was made is not known to every server at once."""
        deadline = time.monotonic() + THERE_WITHIN
        while len(found := self._look(wanted)) < len(wanted):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"Topics of {next(iter(wanted))!r} were made but have no leader yet. The next try goes on."
                )
            time.sleep(0.02)
        return found
