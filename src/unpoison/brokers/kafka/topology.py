"""What must be there before messages can flow, and who makes it?

What is missing is made, with the settings that it needs, unless that is forbidden. What is there is never changed. A source that
was there and is no more is not made again: only its owner knows what it was like.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import TopicMetadata

from unpoison.brokers.kafka.asking import ANSWER_WITHIN
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.planned_topics import commands, contents, planned
from unpoison.brokers.kafka.session import Session
from unpoison.brokers.kafka.troubles import DENIED, answered, lacking, told, unavailable
from unpoison.errors import BrokerUnavailable, ConfigError

log = logging.getLogger("unpoison")

THERE_WITHIN = 15.0

Topics = dict[str, TopicMetadata]


class Topology:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._there: set[str] = set()
        self._partitions: dict[str, int] = {}
        self.created: set[str] = set()
        """Sources that were not there before, until publishing has said so."""

    def ensure(self, source: str, *, to_publish: bool = False, to_consume: bool = False) -> None:
        """Have everything that a source needs. A publisher needs the source alone where it has no group or may make nothing.
        Where nothing may be made, a consumer is refused unless all is there; others who look work with what there is."""
        names = self._session.names(source)
        wanted = names.topics if not to_publish or (names.group_name and self._session.create) else (names.topic,)
        if self._there.issuperset(wanted):
            return
        found = self._look(wanted)
        if missing := [name for name in wanted if name not in found]:
            self._check_sight(missing)
            if not self._session.create:
                self._refuse(names, missing, found, "publish" if to_publish else "consume" if to_consume else "look")
                return
            # The source first: one that somebody has made just now may not be known to the server that was asked.
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
        """Have what was there when the consumer started and is missing now; returns what was made. Raises BrokerUnavailable,
        which pauses the source, where that is not ours to make."""
        found = {name: topic for name, topic in self._session.cluster().topics.items() if topic.partitions}
        missing = [name for name in names.topics if name in needed and name not in found]
        self.forget(names.topics)
        if names.topic in missing or (missing and not self._session.create):
            raise BrokerUnavailable(self._deleted(names, missing, found))
        self._partitions |= {name: len(topic.partitions) for name, topic in self._make(names, missing, found).items()}
        for name in missing:
            extra = {"event": "topic-made", "source": names.source, "topic": name}
            text = "Source %r: somebody has deleted topic %r, and %s. It was made again, and the source goes on."
            log.warning(text, names.source, name, contents(names, name), extra=extra)
        return missing

    def _deleted(self, names: Names, missing: Sequence[str], found: Topics) -> str:
        if names.topic in missing:
            return (
                f"{self._listed(missing)}: somebody has deleted the source. unpoison does not make it again, since only its "
                f"owner knows its settings. Once it is there, its messages are consumed from the first one on."
            )
        return f"{self._listed(missing)}, and create=False forbids making what is missing. {self._how(names, missing, found)}"

    def _listed(self, missing: Sequence[str]) -> str:
        many, verb = ("Topic", "is") if len(missing) == 1 else ("Topics", "are")
        return f"{many} {', '.join(map(repr, missing))} {verb} missing at {self._session.address.shown}"

    def _how(self, names: Names, missing: Sequence[str], found: Topics) -> str:
        wanted = planned(names, self._session.address, found)
        lines = commands([wanted[name] for name in missing], self._session.address)
        return "Make it with:" + "".join(f"\n  {line}" for line in lines)

    def forget(self, topics: Collection[str]) -> None:
        """These are others than they were, or gone."""
        self._there.difference_update(topics)
        for name in topics:
            self._partitions.pop(name, None)

    def partitions(self, topic: str) -> int:
        """How many there are; 0 if the topic is not there."""
        if topic not in self._partitions:
            self._partitions |= {name: len(each.partitions) for name, each in self._look([topic]).items()}
        return self._partitions.get(topic, 0)

    def _look(self, topics: Collection[str]) -> Topics:
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

    def _refuse(self, names: Names, missing: Sequence[str], found: Topics, purpose: str) -> None:
        if purpose != "look":
            what = f"Consumer {names.source!r} does not start" if purpose == "consume" else f"{names.source!r} takes no message"
            how = self._how(names, missing, found)
            raise ConfigError(f"{what}: create=False forbids making what is missing. {self._listed(missing)}. {how}")
        if names.topic not in found and names.dlq not in found:
            raise ConfigError(
                f"There is no topic {names.topic!r} at {self._session.address.shown}, so it has no messages and no dead letters. "
                f"See what is there: kafka-topics.sh --list"
            )

    def _make(self, names: Names, wanted: Collection[str], found: Mapping[str, TopicMetadata]) -> Topics:
        topics = [
            topic for name, topic in planned(names, self._session.address, found).items() if name in wanted and name not in found
        ]
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

    def _wait_for(self, wanted: Collection[str]) -> Topics:
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
