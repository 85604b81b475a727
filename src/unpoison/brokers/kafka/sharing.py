"""What happens when partitions of a topic come to this consumer, or go to another one?

Kafka calls all of this, in the keeper of a line, where nothing may escape from it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.committing import RETRY_AFTER, Commits
from unpoison.brokers.kafka.connecting import ALL_DOWN, Connecting
from unpoison.brokers.kafka.part import Part
from unpoison.brokers.kafka.shelf import Shelf
from unpoison.brokers.kafka.troubles import told


class Sharing:
    """The part of a line that has to do with the rest of its group."""

    def __init__(self, settings: dict[str, Any], topic: str, ring: Callable[[], None]) -> None:
        self.topic, self.ring = topic, ring
        self.connecting: Connecting = settings.pop("connecting")
        self._drain = settings.pop("drain")
        self._session = settings["session.timeout.ms"] / 1000
        self.shelf: Shelf
        self.changed = threading.Condition()
        self.parts: dict[int, Part] = {}
        self.is_joined = self.is_moving = False
        """Whether the group has taken us in, and whether it is about to share the partitions out."""
        self.lost_something = False
        self.closing = False
        self.starts_slowly = False
        """Whether somebody is rung for when more may be started: others get all that is there at once."""
        self.commits = Commits(topic, self.changed, self.parts, ring)

    def on_assign(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        with self.changed:
            for place in places:
                if place.topic == self.topic:
                    self.parts[place.partition] = Part(self.topic, place.partition)
            self.is_joined, self.commits.is_denied, self.is_moving = True, False, False
            self.changed.notify_all()
        with suppress(KafkaException):
            consumer.resume(list(places))  # a pause outlives the loss of a partition
        self.ring()

    def on_revoke(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        with self.changed:
            parts = [self.parts[each.partition] for each in places if each.topic == self.topic and each.partition in self.parts]
            for part in parts:
                part.unmark()
                part.is_revoked = True
            if not self.closing:
                self.changed.wait_for(lambda: self.closing or not any(part.hand for part in parts), self._drain)
        self._hand_over(parts)
        with self.changed:
            said = [(part, position) for part in parts if part.is_known and (position := part.position())]
            new = [part.place(position) for part, position in said if position != part.confirmed]
        if new:
            try:
                consumer.commit(offsets=new, asynchronous=False)
            except KafkaException as error:
                self.commits.trouble = told(error.args[0])
        self.drop(parts)

    def _hand_over(self, parts: Sequence[Part]) -> None:
        """A server that does not answer may do so before it gives us up; what were dropped now would be started twice."""
        deadline = time.monotonic() + self._session
        while (running := [part for part in parts if part.hand]) and not self.closing:
            for part in running:
                self.shelf.hand_over(part)
            if time.monotonic() > deadline:
                break
            with self.changed:
                self.changed.wait_for(lambda: self.closing or not any(part.hand for part in parts), RETRY_AFTER)

    def on_lost(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        with self.changed:
            parts = [self.parts[each.partition] for each in places if each.topic == self.topic and each.partition in self.parts]
        # We may have stood still ourselves, or the server has, without a word.
        self.connecting.hear(KafkaError(ALL_DOWN, f"no answer for {self._session:g} s, so the session has ended"))
        self.drop(parts)

    def drop(self, parts: Sequence[Part]) -> None:
        with self.changed:
            for part in parts:
                part.is_lost = True
                if part.hand and not self.closing:
                    self.lost_something = True
                self.parts.pop(part.number, None)
                self.commits.forget(part.number)
            self.changed.notify_all()
        self.ring()
