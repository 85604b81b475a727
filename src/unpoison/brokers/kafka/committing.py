"""How does the server learn what became of messages, without a thread waiting for it?

A mark is committed as soon as records were read, so that it is confirmed before they are fetched. One commit at a time is on its
way, for all partitions of the assignment. The next one reports all that happened meanwhile.
"""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.errors import error_text, is_final, with_permission
from unpoison.brokers.kafka.partition import Assignment, Partition
from unpoison.errors import BrokerUnavailable

RETRY_AFTER = 0.2
CONFIRMED_WITHIN = 10.0
"""Seconds without a confirmation after which fetching raises."""
ANSWER_WITHIN = 5.0


class Commits:
    def __init__(self, assignment: Assignment) -> None:
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
        self._sent: dict[int, tuple[Partition, tuple[int, str]]] = {}
        self._silent_since: float | None = None
        self._not_before = 0.0

    def watched(self, keep: Callable[[], None]) -> Callable[[], None]:
        """The same work. If it breaks, fetching raises: else everybody would wait for a thread that has ended."""

        def watched() -> None:
            try:
                keep()
            except BaseException as error:
                self.trouble, self.is_over = f"{type(error).__name__}: {error}", True
                raise

        return watched

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

    def forget(self, number: int | None = None) -> None:
        """A partition, or all of them, are no longer ours to commit. An answer may still be on its way."""
        for each in [number] if number is not None else list(self._sent):
            self._sent.pop(each, None)

    # In the keeper.

    def reset(self) -> None:
        """Start over with a new client: what the old one had sent is not answered any more."""
        with self._changed:
            self._sent, self.is_under_way, self.trouble, self._silent_since = {}, False, None, None
            self._changed.notify_all()

    def send(self, consumer: Consumer) -> None:
        """Commit what has changed, unless a commit is on its way: then the next one does."""
        with self._changed:
            if self.is_under_way or time.monotonic() < self._not_before:
                return
            self._sent = self._changes()
            for partition, _ in self._sent.values():
                partition.note_sent()
            places = [partition.to_commit(position) for partition, position in self._sent.values()]
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

    def _changes(self) -> dict[int, tuple[Partition, tuple[int, str]]]:
        found: dict[int, tuple[Partition, tuple[int, str]]] = {}
        for number, partition in self._partitions.items():
            if not partition.is_known or partition.is_revoked:
                continue
            if self.marking:
                partition.mark()
            position = partition.position()
            if position is not None and position != partition.confirmed:
                found[number] = (partition, position)
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
        sent, self._sent, self.trouble, self._silent_since = self._sent, {}, None, None
        self.is_under_way = False
        for partition, position in sent.values():
            partition.confirm(position)
            if partition.marking:
                self._free(partition)
            elif partition.slow_start is not None:
                self._ring()

    def _failed(self, error: KafkaError) -> None:
        """Commit again a little later. If a partition is no longer ours, Kafka reports that too."""
        self.trouble = error_text(with_permission(error, f"Read on topic {self._topic!r} and on its group"))
        self.is_over |= is_final(error)
        for partition, _ in self._sent.values():
            partition.unmark_failed()
        self._sent, self.is_under_way = {}, False
        self._not_before = time.monotonic() + RETRY_AFTER
