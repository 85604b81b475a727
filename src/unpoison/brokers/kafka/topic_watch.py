"""Are the topics of a source still there, and still the same ones?

The client does not say: after a topic was deleted it waits in silence, and in one that was made again it reads on at the old
offset, past messages that nobody has handled. The server gives each topic an id of its own, so we ask for that.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import TopicDescription

from unpoison.brokers.kafka.asking import ASK_FOR
from unpoison.brokers.kafka.session import Session

LOOK_EVERY = 1.0
LOOK_AGAIN = 0.2
"""Seconds until a change is looked at once more: a server that has just started may not know all topics yet."""
MISSING = "missing"
UNKNOWN = ""
"""The id where the server has none (before 2.8)."""
NULL = "AAAAAAAAAAAAAAAAAAAAAA"
"""How a server without ids answers."""


class TopicWatch:
    """Looks once a second, without making anybody wait; from whatever threads call `tick`."""

    def __init__(self, session: Session, topics: Sequence[str]) -> None:
        self._session, self._topics = session, topics
        self._lock = threading.Lock()
        self._asked: Mapping[str, Future[TopicDescription]] = {}
        self._not_before = 0.0
        self._ids: dict[str, str] = {}
        self._doubted: dict[str, str] = {}
        self.missing: frozenset[str] = frozenset()
        self.replaced: set[str] = set()
        """Topics that are others than before, and that somebody else has made, until one has looked how."""

    def id_of(self, topic: str) -> str | None:
        """The id of a topic as it is now, or MISSING; None before the first answer."""
        return self._ids.get(topic)

    def look_soon(self) -> None:
        """Something speaks for a change."""
        self._not_before = 0.0

    def forget_missing(self) -> None:
        """They are there again, as somebody has seen: what they are is for the next look."""
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
                self._asked = self._session.admin.describe_topics(TopicCollection(list(self._topics)), request_timeout=ASK_FOR)

    def _learn(self, answers: Mapping[str, "Future[TopicDescription]"]) -> bool:
        """Whether there is a change that is to be looked at once more."""
        found = {name: id_ for name, answer in answers.items() if (id_ := _id(answer)) is not None}
        changed = {name: id_ for name, id_ in found.items() if self._ids.get(name, id_) != id_}
        before = dict(self._ids)
        self._ids |= {name: id_ for name, id_ in found.items() if name not in changed or self._doubted.get(name) == id_}
        self._doubted = {name: id_ for name, id_ in changed.items() if self._ids[name] != id_}
        self.missing = frozenset(name for name, id_ in self._ids.items() if id_ == MISSING)
        self.replaced |= {name for name, id_ in self._ids.items() if before.get(name, id_) != id_ != MISSING}
        return bool(self._doubted)


def _id(answer: "Future[TopicDescription]") -> str | None:
    """None if nobody has answered: then it is as it was."""
    try:
        id_ = str(answer.result(0).topic_id)
    except KafkaException as error:
        return MISSING if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None
    return UNKNOWN if id_ == NULL else id_
