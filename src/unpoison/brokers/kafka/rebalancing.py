"""What happens when partitions of a topic come to this consumer, or go to another one?

Kafka calls all of this, in the keeper of a line, where nothing may escape from it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.committing import ANSWER_WITHIN, RETRY_AFTER, Commits
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import ALL_DOWN, Connecting, told
from unpoison.brokers.kafka.partition import AFTER_A_LOSS, OTHERWISE, Part, SlowStart
from unpoison.brokers.kafka.topology import TopicWatch


class Shelf(Protocol):
    """What a topic's messages wait for."""

    def arrange(self, part: Part, records: Sequence[Record]) -> None:
        """Put records that were read where they wait."""

    def sleep(self) -> float:
        """Seconds until the next one's time has come."""

    def tick(self) -> None:
        """Now and then, in the keeper: look for what need not wait any longer."""

    def hand_over(self, part: Part) -> None:
        """The partition goes to another consumer while some of its messages are in somebody's hand here."""

    def close(self) -> None:
        """In the keeper, when it ends: nobody else may close what it uses."""


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
        self.watch: TopicWatch | None = None
        self.topic_id: str | None = None
        """Of the topic that is consumed, or MISSING; None before it is known."""
        self.on_return: Callable[[int], None] = lambda _: None
        """Told how many messages came back from a consumer that vanished."""
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

    def abandon(self) -> None:
        """The topic was deleted. What runs is settled as ever: its retry or dead letter is stored, and nothing is committed."""
        with self.changed:
            for part in self.parts.values():
                part.abandon()
            self.parts.clear()
            self.commits.forget()
            self.is_joined = self.is_moving = False
            self.changed.notify_all()
        self.ring()

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

    def read_ledgers(self, consumer: Consumer) -> None:
        """Learn what the last owners of our partitions had done."""
        unknown = [part for part in self.parts.values() if not part.is_known]
        if not unknown or (self.watch is not None and self.topic_id is None):
            return
        try:
            found = consumer.committed([TopicPartition(self.topic, part.number) for part in unknown], timeout=ANSWER_WITHIN)
        except KafkaException as error:
            self.commits.trouble = told(error.args[0])
            return
        with self.changed:
            for each in found:
                part = self.parts.get(each.partition)
                if part is None or part.is_known or each.error:
                    continue
                is_of_another = self._is_of_another(each)
                if is_of_another and not self._begin_at_first(consumer, part):
                    continue
                part.topic_id = self.topic_id or ""
                came_back = part.take_over(OFFSET_INVALID if is_of_another else each.offset, each.metadata)
                if came_back:
                    self.on_return(came_back)
                if self.starts_slowly:
                    part.slow_start = SlowStart(AFTER_A_LOSS if came_back else OTHERWISE)
                early, part.early = part.early, []
                if early:
                    self.arrive_in(part, early)
                if part.at_end >= 0:
                    part.ends_at(part.at_end)
            self.changed.notify_all()

    def _is_of_another(self, committed: TopicPartition) -> bool:
        """Whether it was committed for a topic of this name that was deleted since."""
        id_ = commit_metadata.untagged(committed.metadata)[1]
        return committed.offset >= 0 and bool(id_ and self.topic_id) and id_ != self.topic_id

    def _begin_at_first(self, consumer: Consumer, part: Part) -> bool:
        """The client has begun where that says. False if it cannot be told otherwise yet."""
        try:
            consumer.seek(TopicPartition(self.topic, part.number, OFFSET_BEGINNING))
        except KafkaException:
            return False
        part.early, part.at_end = [], -1
        return True

    def arrive_in(self, part: Part, records: list[Record]) -> None:
        if not part.is_known:
            part.early += records
            return
        new = part.arrive(records)
        part.size += sum(map(len, new))
        self.shelf.arrange(part, new)
