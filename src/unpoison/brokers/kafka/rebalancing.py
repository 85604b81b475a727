"""What happens when partitions of a topic come to this consumer, or go to another one?

Kafka calls `on_assign`, `on_revoke` and `on_lost` in the keeper (group_member.py). No exception may escape from them.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.committing import ANSWER_WITHIN, RETRY_AFTER, Commits
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import ALL_DOWN, error_text
from unpoison.brokers.kafka.partition import AFTER_A_LOSS, OTHERWISE, Assignment, Partition, SlowStart
from unpoison.brokers.kafka.settings import MemberSettings
from unpoison.brokers.kafka.waiting import HandOver, Waiting


class Rebalancing:
    """Changes the assignment of one member as its group shares the partitions out."""

    def __init__(
        self,
        settings: MemberSettings,
        assignment: Assignment,
        commits: Commits,
        waiting: Waiting,
        hand_over: HandOver,
        *,
        starts_slowly: bool = False,
        on_return: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._settings, self._assignment, self._commits = settings, assignment, commits
        self._waiting, self._hand_over = waiting, hand_over
        self._starts_slowly, self._on_return = starts_slowly, on_return

    def on_assign(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        here = self._assignment
        with here.changed:
            for place in places:
                if place.topic == here.topic:
                    here.partitions[place.partition] = Partition(here.topic, place.partition)
            here.is_joined, self._commits.is_denied, here.is_moving = True, False, False
            here.changed.notify_all()
        with suppress(KafkaException):
            consumer.resume(list(places))  # a pause outlives the loss of a partition
        here.ring()

    def on_revoke(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        here = self._assignment
        with here.changed:
            partitions = here.named(places)
            for partition in partitions:
                partition.unmark()
                partition.is_revoked = True
            here.changed.notify_all()
            if not here.is_closing:
                here.changed.wait_for(lambda: here.is_closing or not _are_running(partitions), self._settings.drain)
        self._hand_over_running(partitions)
        with here.changed:
            positions = [(each, position) for each in partitions if each.is_known and (position := each.position())]
            new = [each.to_commit(position) for each, position in positions if position != each.confirmed]
        if new:
            try:
                consumer.commit(offsets=new, asynchronous=False)
            except KafkaException as error:
                self._commits.trouble = error_text(error.args[0])
        self.drop(partitions)

    def _hand_over_running(self, partitions: Sequence[Partition]) -> None:
        """Try for as long as the session lasts: a message that were dropped while it runs here would start twice."""
        here, deadline = self._assignment, time.monotonic() + self._settings.session_timeout
        while (running := [partition for partition in partitions if partition.running]) and not here.is_closing:
            for partition in running:
                self._hand_over(partition)
            if time.monotonic() > deadline:
                break
            with here.changed:
                here.changed.wait_for(lambda: here.is_closing or not _are_running(partitions), RETRY_AFTER)

    def on_lost(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        with self._assignment.changed:
            partitions = self._assignment.named(places)
        # This process may have been paused, or the server has, without a word.
        silence = f"no answer for {self._settings.session_timeout:g} s, so the session has ended"
        self._settings.state.hear(KafkaError(ALL_DOWN, silence))
        self.drop(partitions)

    def abandon(self) -> None:
        """The topic was deleted. Running messages are settled as ever: retries and dead letters are stored. No commit is sent."""
        here = self._assignment
        with here.changed:
            for partition in here.partitions.values():
                partition.abandon()
            here.partitions.clear()
            self._commits.forget()
            here.is_joined = here.is_moving = False
            here.changed.notify_all()
        here.ring()

    def drop(self, partitions: Sequence[Partition]) -> None:
        """These are no longer ours."""
        here = self._assignment
        with here.changed:
            for partition in partitions:
                partition.is_lost = True
                if partition.running and not here.is_closing:
                    here.lost_something = True
                here.partitions.pop(partition.number, None)
                self._commits.forget(partition.number)
            here.changed.notify_all()
        here.ring()

    def read_committed(self, consumer: Consumer) -> None:
        """Learn what the last owners of our partitions have done. The id of the topic must be known for that."""
        here = self._assignment
        unknown = [partition for partition in here.partitions.values() if not partition.is_known]
        if not unknown or here.topic_id is None:
            return
        try:
            found = consumer.committed([TopicPartition(here.topic, each.number) for each in unknown], timeout=ANSWER_WITHIN)
        except KafkaException as error:
            self._commits.trouble = error_text(error.args[0])
            return
        with here.changed:
            for each in found:
                partition = here.partitions.get(each.partition)
                if partition is not None and not partition.is_known and not each.error:
                    self._take_over(consumer, partition, each)
            here.changed.notify_all()

    def _take_over(self, consumer: Consumer, partition: Partition, committed: TopicPartition) -> None:
        is_of_deleted = self._is_of_deleted_topic(committed)
        if is_of_deleted and not self._seek_to_first(consumer, partition):
            return
        partition.topic_id = self._assignment.topic_id or ""
        came_back = partition.take_over(OFFSET_INVALID if is_of_deleted else committed.offset, committed.metadata)
        if came_back:
            self._on_return(came_back)
        if self._starts_slowly:
            partition.slow_start = SlowStart(AFTER_A_LOSS if came_back else OTHERWISE)
        early, partition.early = partition.early, []
        if early:
            self.arrive_in(partition, early)
        if partition.at_end >= 0:
            partition.ends_at(partition.at_end)

    def _is_of_deleted_topic(self, committed: TopicPartition) -> bool:
        """Whether it was committed for a topic of this name that was deleted since."""
        id_, now = commit_metadata.split_topic_id(committed.metadata)[1], self._assignment.topic_id
        return committed.offset >= 0 and bool(id_ and now) and id_ != now

    def _seek_to_first(self, consumer: Consumer, partition: Partition) -> bool:
        """Correct the client, which has begun at the committed offset. False if it does not let us yet."""
        try:
            consumer.seek(TopicPartition(partition.topic, partition.number, OFFSET_BEGINNING))
        except KafkaException:
            return False
        partition.early, partition.at_end = [], -1
        return True

    def arrive_in(self, partition: Partition, records: list[Record]) -> None:
        """These records of a partition were read."""
        if not partition.is_known:
            partition.early += records
            return
        new = partition.arrive(records)
        partition.size += sum(map(len, new))
        self._waiting.arrange(partition, new)


def _are_running(partitions: Sequence[Partition]) -> bool:
    return any(partition.running for partition in partitions)
