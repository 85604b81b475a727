"""How does the server learn what became of messages, without a thread waiting for it, and the next owner of a partition from it?

A mark is committed as soon as records were read, so that it is confirmed before they are fetched. One commit at a time is on its
way, for all partitions of the assignment. The next one reports all that happened meanwhile.
"""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import error_text, is_final, with_permission
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.brokers.kafka.reading import SourcePause
from unpoison.brokers.kafka.slow_start import AFTER_A_LOSS, OTHERWISE, SlowStart
from unpoison.errors import BrokerUnavailable

RETRY_AFTER = 0.2
CONFIRMED_WITHIN = 10.0
"""Seconds without a confirmation after which fetching raises."""
ANSWER_WITHIN = 5.0

Arrive = Callable[[Partition, Sequence[Record]], None]
"""What is done with records of a partition that were read."""


class Commits:
    def __init__(
        self,
        assignment: Assignment,
        pause: SourcePause | None = None,
        *,
        starts_slowly: bool = False,
        on_return: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`starts_slowly` is for a caller that is rung when more may start. `on_return` hears how many messages came back from
        a consumer that vanished."""
        self.assignment, self._starts_slowly, self._on_return = assignment, starts_slowly, on_return
        self.pause = pause or SourcePause()
        self._topic, self._changed, self._ring = assignment.topic, assignment.changed, assignment.ring
        self._partitions = assignment.partitions
        self.marking = False
        """Whether messages are wanted: then the mark moves past what was read."""
        self.trouble: str | None = None
        self.is_denied = False
        """Whether this user lacks a permission: then no message will come."""
        self.is_over = False
        """Whether no message will come any more, for as long as this process lives."""
        self.is_under_way = False
        self._sent: list[tuple[Partition, tuple[int, str]]] = []
        self._silent_since: float | None = None
        self._not_before = 0.0

    def wait(self, *, anyway: bool) -> None:
        """Give the server a moment to confirm everything; unless `anyway`, only if no message runs or is about to.

        Not while partitions are revoked: the keeper is in Kafka's callback then, which commits them itself, and neither sends
        a commit nor hears an answer before it ends.
        """
        with self._changed:
            if anyway or all(partition.is_idle for partition in self._partitions.values()):
                self._changed.wait_for(lambda: self.are_confirmed() or self._are_revoked(), ANSWER_WITHIN)

    def _are_revoked(self) -> bool:
        return any(partition.is_revoked for partition in self._partitions.values())

    def require(self) -> None:
        """Wait until the server has confirmed everything, and raise if it has not in time."""
        with self._changed:
            is_confirmed = self._changed.wait_for(self.are_confirmed, ANSWER_WITHIN)
        if not is_confirmed:
            raise BrokerUnavailable(
                f"Kafka has not confirmed a commit to {self._topic!r} within {ANSWER_WITHIN:g} s{self._why()}. No "
                f"message starts before it has."
            )

    def check(self) -> None:
        """Raise if the server has been silent for too long: a message that starts now could not be settled."""
        if self.is_over:
            raise BrokerUnavailable(
                f"Kafka gives this consumer no more messages of {self._topic!r}{self._why()}. If the URL has instance=, another "
                f"process may have joined under the same name: give each its own. Then start this one again."
            )
        if self.is_denied:
            raise BrokerUnavailable(f"Kafka does not let this user read {self._topic!r}{self._why()}.")
        since = self._silent_since
        if since is not None and time.monotonic() - since > CONFIRMED_WITHIN:
            raise BrokerUnavailable(f"Kafka has confirmed no commit to {self._topic!r} for {CONFIRMED_WITHIN:g} s{self._why()}.")

    def _why(self) -> str:
        return f" ({self.trouble})" if self.trouble else ""

    def are_confirmed(self) -> bool:
        return not self.is_under_way and all(
            partition.confirmed == position
            for partition in self._partitions.values()
            if partition.is_known and (position := partition.position())
        )

    def is_last_word(self, partition: Partition, position: tuple[int, str]) -> bool:
        """Whether the server has confirmed this, and no commit that says something else is on its way."""
        return partition.confirmed == position and not any(each is partition for each, _ in self._sent)

    # In the keeper.

    def reset(self) -> None:
        """Start over with a new client: what the old one had sent is not answered any more."""
        with self._changed:
            self._sent, self.is_under_way, self.trouble, self._silent_since = [], False, None, None
            self._changed.notify_all()

    def send(self, consumer: Consumer) -> None:
        """Commit what has changed, unless a commit is on its way: then the next one does."""
        with self._changed:
            if self.is_under_way or time.monotonic() < self._not_before:
                return
            self._sent = self._changes()
            for partition, _ in self._sent:
                partition.note_sent()
            places = [partition.to_commit(position) for partition, position in self._sent]
            self.is_under_way = bool(places)
            if not places:
                self._silent_since = None  # what waited for an answer has gone to another consumer
                return
            self._silent_since = self._silent_since or time.monotonic()
        try:
            consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            with self._changed:
                self._failed(error.args[0])

    def _changes(self) -> list[tuple[Partition, tuple[int, str]]]:
        found: list[tuple[Partition, tuple[int, str]]] = []
        for partition in self._partitions.values():
            if not partition.is_known or partition.is_revoked:
                continue
            if self.marking and not self.pause.stops_marking:
                partition.mark(self.pause.grant)
            position = partition.position()
            if position is not None and position != partition.confirmed:
                found.append((partition, position))
            elif partition.marking:  # the last owner has committed the same mark
                self._free(partition)
        return found

    def _free(self, partition: Partition) -> None:
        partition.free()
        self._changed.notify_all()
        self._ring()

    def on_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """The server's answer."""
        with self._changed:
            failed = error or next((each.error for each in places if each.error), None)
            if failed is not None:
                self._failed(failed)
            else:
                self._succeeded()
            self._changed.notify_all()

    def _succeeded(self) -> None:
        sent, self._sent, self.is_under_way, self.trouble, self._silent_since = self._sent, [], False, None, None
        for partition, position in sent:
            partition.confirm(position)
            if partition.marking:
                self._free(partition)
            elif partition.slow_start is not None:
                self._ring()

    def _failed(self, error: KafkaError) -> None:
        """Commit again a little later. If a partition is no longer ours, Kafka reports that too."""
        self.trouble = error_text(with_permission(error, f"Read on topic {self._topic!r} and on its group"))
        self.is_over |= is_final(error)
        for partition, _ in self._sent:
            partition.unmark_failed()
        self._sent, self.is_under_way = [], False
        self._not_before = time.monotonic() + RETRY_AFTER

    def take_over(self, consumer: Consumer, arrive: Arrive) -> None:
        """Learn what the last owners of our partitions have done. The id of the topic must be known for that."""
        here = self.assignment
        unknown = [partition for partition in here.partitions.values() if not partition.is_known]
        if not unknown or here.topic_id is None:
            return
        try:
            found = consumer.committed([TopicPartition(here.topic, each.number) for each in unknown], timeout=ANSWER_WITHIN)
        except KafkaException as error:
            self.trouble = error_text(error.args[0])
            return
        with here.changed:
            for each in found:
                partition = here.partitions.get(each.partition)
                if partition is not None and not partition.is_known and not each.error:
                    self._take_over(consumer, partition, each, arrive)
            here.changed.notify_all()

    def _take_over(self, consumer: Consumer, partition: Partition, committed: TopicPartition, arrive: Arrive) -> None:
        id_, now = commit_metadata.split_topic_id(committed.metadata)[1], self.assignment.topic_id
        # It was committed for a topic of this name that was deleted since.
        is_of_deleted = committed.offset >= 0 and bool(id_ and now) and id_ != now
        if is_of_deleted and not self._seek_to_first(consumer, partition):
            return
        partition.topic_id = now or ""
        came_back = partition.take_over(OFFSET_INVALID if is_of_deleted else committed.offset, committed.metadata)
        if came_back:
            self._on_return(came_back)
        if self._starts_slowly:
            partition.slow_start = SlowStart(AFTER_A_LOSS if came_back else OTHERWISE)
        early, partition.early = partition.early, []
        if early:
            arrive(partition, early)
        if partition.at_end >= 0:
            partition.ends_at(partition.at_end)

    def _seek_to_first(self, consumer: Consumer, partition: Partition) -> bool:
        """Correct the client, which has begun at the committed offset. False if it does not let us yet."""
        try:
            consumer.seek(TopicPartition(partition.topic, partition.number, OFFSET_BEGINNING))
        except KafkaException:
            return False
        partition.early, partition.at_end = [], -1
        return True
