"""Which partitions are read at the moment, and how many of the messages that were read may start?

A partition may have several reasons not to be read: too much of it waits here already, or its source is paused. Only `Reading`
tells the client, so that the end of one reason does not resume a partition that has another.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from unpoison.brokers.kafka.partition import MUCH_WAITS, SOURCE_PAUSED, Assignment, Partition

MAX_RECORDS, MAX_BYTES = 8_000, 16 * 1024 * 1024
"""What is read ahead of its start."""


class SourcePause:
    """Of one source: while it is on, nothing is read and nothing may start but what is asked for.

    Both members of the source share it. Each marks messages in a thread of its own, so what is asked for is granted once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_on = False
        self.left = 0
        """How many more messages may be about to start than are now."""
        self._is_held = False

    def begin(self) -> None:
        self.is_on = True
        self.ask(0, is_held=False)

    def end(self) -> None:
        self.is_on = False

    def ask(self, count: int, *, is_held: bool) -> None:
        """So many messages are wanted beside those that are about to start. `is_held`: some were read already, so no partition
        need be read for them."""
        with self._lock:
            self.left, self._is_held = count, is_held

    def grant(self, wanted: int) -> int:
        """How many of so many messages may be about to start from now on."""
        if not self.is_on:
            return wanted
        with self._lock:
            granted = min(wanted, self.left)
            self.left -= granted
            return granted

    @property
    def stops_marking(self) -> bool:
        return self.is_on and not self.left

    @property
    def stops_reading(self) -> bool:
        return self.is_on and (self._is_held or not self.left)


class Reading:
    """For one member of a group. `client` is what it reads with; `is_always_read` are partitions that no pause of the source
    concerns, since nothing starts from them that was not looked for. In the keeper."""

    def __init__(
        self,
        assignment: Assignment,
        pause: SourcePause,
        client: Callable[[], Consumer | None],
        is_always_read: Callable[[Partition], bool],
    ) -> None:
        self._assignment, self._pause, self._client, self._is_always_read = assignment, pause, client, is_always_read

    def stop(self, partition: Partition, reason: str, stopped: bool) -> None:
        """Stop reading a partition for this reason, or read it again if there is no other reason."""
        if (reason in partition.pauses) == stopped:
            return
        before = partition.is_paused
        change_reason = partition.pauses.add if stopped else partition.pauses.discard
        change_reason(reason)
        client = self._client()
        if client is not None and partition.is_paused != before:
            change = client.pause if stopped else client.resume
            with suppress(KafkaException):  # it has just gone elsewhere
                change([TopicPartition(partition.topic, partition.number)])

    def choose(self) -> None:
        """A full member still polls, and each poll may bring a record: beside a long handler, large ones would fill the memory.
        A pause throws away what the client has read ahead, so there is one only at twice what makes the member full."""
        partitions, stops = list(self._assignment.partitions.values()), self._pause.stops_reading
        size = _size(partitions)
        for partition in partitions:
            if size > 2 * MAX_BYTES or size <= MAX_BYTES // 2:
                self.stop(partition, MUCH_WAITS, size > MAX_BYTES)
            self.stop(partition, SOURCE_PAUSED, stops and not self._is_always_read(partition))

    def is_full(self) -> bool:
        """Whether enough is read ahead. While the source is paused hardly anything is read, so that it does not matter."""
        if self._pause.stops_reading:
            return False
        partitions = list(self._assignment.partitions.values())
        count = sum(len(each.ready) + len(each.fresh) + len(each.marking) + len(each.early) for each in partitions)
        return count > MAX_RECORDS or _size(partitions) > MAX_BYTES

    def is_busy(self) -> bool:
        """Whether something runs, or is to start soon."""
        waits = not self._pause.stops_marking
        partitions = self._assignment.partitions.values()
        return any(each.running or each.ready or each.marking or (waits and each.fresh) for each in partitions)


def _size(partitions: Iterable[Partition]) -> int:
    return sum(each.size + sum(map(len, each.early)) for each in partitions)
