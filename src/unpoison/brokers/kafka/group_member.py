"""How do the records of one topic get here, and what happens when partitions come to this consumer or go to another one?

A thread, the keeper, is the only one that polls the client: a long handler never lets the membership lapse, and all of Kafka's
callbacks run there. No message starts that lies above the last mark which the server has confirmed (committing.py).
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.committing import ANSWER_WITHIN, RETRY_AFTER, Commits
from unpoison.brokers.kafka.connection import Connection
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import ALL_DOWN, DENIED, error_text, is_final, with_permission
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.partition import Partition
from unpoison.brokers.kafka.reading import Reading
from unpoison.brokers.kafka.settings import MemberSettings
from unpoison.brokers.kafka.topology import MISSING, TopicWatch
from unpoison.brokers.kafka.waiting import Waiting, hand_over

POLL, POLL_WHEN_BUSY, POLL_WHEN_PAUSED = 0.02, 0.001, 0.1
"""Seconds. While one thread is in the client no other can use it: a thread that settles gets its turn between two polls."""
WAIT_WHEN_FULL = 0.005
BATCH = 500
SERVE_EVERY = 0.5
ASKED_FOR = 3.0
"""Seconds for which messages of a paused source are wanted after a fetch. A caller that still wants one fetches once a second."""
LOOK_EVERY, LOOK_FOR = 1.0, 0.5


class GroupMember:
    """One member of a consumer group, for one topic."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        settings: MemberSettings,
        commits: Commits,
        waiting: Waiting,
        watch: TopicWatch,
        *,
        away_topic: str | None = None,
        on_recreated: Callable[[], None] = lambda: None,
    ) -> None:
        """`away_topic` keeps the membership while the partitions are left to others. `on_recreated` hears that the topic was
        deleted and created again."""
        self._connection, self._names = connection, names
        self.settings, self.commits, self.waiting = settings, commits, waiting
        self.assignment = commits.assignment
        self.topic, self.group = self.assignment.topic, settings.group
        self._watch, self._away_topic, self._on_recreated = watch, away_topic, on_recreated
        self._pause = commits.pause
        self._reading = Reading(self.assignment, self._pause, lambda: self._consumer, waiting.is_always_read)
        self.is_waited_for = False
        """Whether a thread fetches at this moment, and waits until all records are read."""
        self._consumer: Consumer | None = None
        self._keeper: threading.Thread | None = None
        self._subscribed: str | None = None
        self._is_away = False
        self._fetched_at = time.monotonic()
        self._looked_at = 0.0
        self._turn = 0

    # In the threads of the consumer.

    def begin(self, *, fetching: bool) -> None:
        """Join the group. With `fetching`, messages are wanted too."""
        with self.assignment.changed:
            if fetching:
                self._fetched_at = time.monotonic()
                self.commits.marking = True
            if self._keeper is None:
                self._consumer = self._client()
                self._keeper = threading.Thread(target=self._keep, name=f"unpoison-kafka-{self.topic}", daemon=True)
                self._keeper.start()

    def _client(self) -> Consumer:
        return Consumer(self.settings.client | {"on_commit": self.commits.on_commit})

    def check(self) -> None:
        """Raise if no message will come, or none could be settled."""
        self.settings.state.check()
        self.commits.check()

    def take(self, limit: int) -> list[tuple[Partition, list[Record]]]:
        """At most so many records that may start now, from one partition after the other."""
        taken: list[tuple[Partition, list[Record]]] = []
        with self.assignment.changed:
            partitions = [partition for partition in self.assignment.partitions.values() if partition.ready]
            if partitions:
                self._turn = (self._turn + 1) % len(partitions)
                partitions = partitions[self._turn :] + partitions[: self._turn]
            for number, partition in enumerate([*partitions, *partitions]):  # a second round for what the others left over
                share = -(-limit // max(1, len(partitions) - number))
                taken.append((partition, partition.take(share)))
                limit -= len(taken[-1][1])
        return taken

    def rest(self) -> None:
        """No message is wanted for the moment: other consumers can have what has not started, as if it had never been here."""
        with self.assignment.changed:
            self.commits.marking = False
            for partition in self.assignment.partitions.values():
                partition.unmark()

    def close(self) -> None:
        with self.assignment.changed:
            self.assignment.is_closing, keeper = True, self._keeper
            self.rest()
            self.assignment.changed.notify_all()
        if keeper is not None:
            keeper.join(30)
            self._keeper = None

    # In the keeper.

    def _keep(self) -> None:
        """If it breaks, fetching raises: else all would wait for a thread that has ended."""
        try:
            self._keep_on()
        except BaseException as error:
            self.commits.trouble, self.commits.is_over = f"{type(error).__name__}: {error}", True
            raise

    def _keep_on(self) -> None:
        consumer = self._consumer
        assert consumer is not None  # noqa: S101 - made before the thread
        served_at = 0.0
        while not self.assignment.is_closing:
            consumer = self._look_at_topic(consumer)
            self._subscribe(consumer)
            if self._pause.is_on:
                self._forget_asked()
            self._reading.choose()
            if is_full := self._reading.is_full():
                time.sleep(WAIT_WHEN_FULL)  # not woken by threads that take or settle something: that happens all the time
            if not is_full or self.commits.is_under_way or time.monotonic() - served_at > SERVE_EVERY:
                self._poll(consumer, 1 if is_full else BATCH)  # also if it is full: answers to commits come in no other way
                served_at = time.monotonic()
            self._look_for_servers(consumer)
            self.commits.take_over(consumer, self.waiting.arrive)
            self.waiting.tick(self._reading.stop)
            self.commits.send(consumer)
            self._continue_slow_starts()
            if self.commits.is_over and self.assignment.partitions:  # the client does not say that these are lost
                self._drop(list(self.assignment.partitions.values()))
        self._leave(consumer)

    def _look_at_topic(self, consumer: Consumer) -> Consumer:
        """Replace the client when its topic was deleted and created again: it would go on as if nothing had happened."""
        self._watch.tick()
        now, before = self._watch.id_of(self.topic), self.assignment.topic_id
        if now is None or now == before:
            return consumer
        self.assignment.topic_id = now
        if before is None:
            return consumer
        self._abandon()
        with suppress(KafkaException, RuntimeError):
            consumer.close()
        self.commits.reset()
        self._consumer, self._subscribed = self._client(), None
        if now != MISSING:
            self._on_recreated()
        return self._consumer

    def _continue_slow_starts(self) -> None:
        for partition in list(self.assignment.partitions.values()):
            if partition.slow_start is None:
                continue
            if partition.slow_start.has_grown():
                self.assignment.ring()
            if partition.slow_start.is_over:
                partition.slow_start = None

    def _subscribe(self, consumer: Consumer) -> None:
        """Be a member while messages are fetched. Leave the partitions to others if messages wait here that nobody fetches."""
        with self.assignment.changed:
            partitions = self.assignment.partitions.values()
            waiting = any(partition.ready or partition.fresh or partition.marking for partition in partitions)
            waiting = waiting and not self._pause.is_on  # then nobody is to have them
            self._is_away = self._quiet() > self.settings.give_back and (waiting or self._is_away)
            topic = self._away_topic if self._is_away else self.topic
            topic = None if self.assignment.topic_id == MISSING else topic
        if topic == self._subscribed:
            return
        if topic is None:
            consumer.unsubscribe()
        else:
            with suppress(KafkaException):
                # A client that is connected joins at once; one that is not looks again after a second.
                consumer.list_topics(topic, timeout=ANSWER_WITHIN)
            consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        self._subscribed, self.assignment.is_moving = topic, topic is not None

    def _look_for_servers(self, consumer: Consumer) -> None:
        """After all servers have gone: until one answers. A caller that waits for messages is told meanwhile."""
        if not self.settings.state.is_doubtful or time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        try:
            consumer.list_topics(self.topic, timeout=LOOK_FOR)
            self.settings.state.answered()
        except KafkaException:
            self.assignment.ring()
        self._looked_at = time.monotonic()

    def _quiet(self) -> float:
        """Seconds for which nobody has asked for messages."""
        return 0.0 if self.is_waited_for else time.monotonic() - self._fetched_at

    def _forget_asked(self) -> None:
        """Whoever asked for messages of the paused source does not want them any more, so none is about to start."""
        with self.assignment.changed:
            if self.commits.marking and self._quiet() > ASKED_FOR:
                self._pause.ask(0, is_held=False)
                self.rest()

    def _poll(self, consumer: Consumer, limit: int) -> None:
        waits = POLL_WHEN_PAUSED if self._pause.stops_reading else POLL
        record = consumer.poll(min(POLL_WHEN_BUSY if self._reading.is_busy() else waits, self.waiting.sleep()))
        if record is None:
            return
        records = cast("list[Record]", [record, *(consumer.consume(limit - 1, 0) if limit > 1 else ())])
        with self.assignment.changed:
            self._arrive(records)
            self.assignment.changed.notify_all()

    def _arrive(self, records: Sequence[Record]) -> None:
        """Thousands of times a second: nothing here is done for each record that can be done for many."""
        topic = self.topic
        good = [record for record in records if record.error() is None and record.topic() == topic]
        if good:
            self.commits.is_denied = False
        for number, together in _by_partition(good):
            if partition := self.assignment.partitions.get(number):
                self.waiting.arrive(partition, together)
        if len(good) < len(records):
            for record in records:
                if error := record.error():
                    self._hear(record, error)

    def _hear(self, record: Record, error: KafkaError) -> None:
        """The end of a partition, or an error that comes in the place of a record."""
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no other name for it
            partition = self.assignment.partitions.get(record.partition())
            if partition is not None and record.topic() == self.topic:
                self.commits.is_denied = False
                partition.at_end = record.offset()
                if partition.is_known:
                    partition.ends_at(record.offset())
            return
        self.commits.trouble = error_text(with_permission(error, f"Read on topic {self.topic!r} and on group {self.group!r}"))
        self.commits.is_denied = error.code() in DENIED
        self.commits.is_over |= is_final(error)

    def _leave(self, consumer: Consumer) -> None:
        deadline = time.monotonic() + ANSWER_WITHIN
        with suppress(KafkaException):
            while time.monotonic() < deadline:
                self.commits.send(consumer)
                with self.assignment.changed:
                    # A member that leaves during a rebalance makes its group wait until its session ends.
                    if self.commits.are_confirmed() and not self.assignment.is_moving:
                        break
                consumer.poll(0.01)
        self.waiting.close()
        with suppress(KafkaException, RuntimeError):
            consumer.close()
        with self.assignment.changed:
            self.assignment.partitions.clear()

    # Called by Kafka, in the keeper. No exception may escape.

    def _on_assign(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        here = self.assignment
        with here.changed:
            for place in places:
                if place.topic == here.topic:
                    here.partitions[place.partition] = Partition(here.topic, place.partition)
            here.is_joined, self.commits.is_denied, here.is_moving = True, False, False
            here.changed.notify_all()
        with suppress(KafkaException):
            consumer.resume(list(places))  # a pause outlives the loss of a partition
        here.ring()

    def _on_revoke(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        here = self.assignment
        with here.changed:
            partitions = here.named(places)
            for partition in partitions:
                partition.unmark()
                partition.is_revoked = True
            here.changed.notify_all()
        self._wait_for_running(partitions, self.settings.drain)
        self._hand_over_running(partitions)
        with here.changed:
            positions = [(each, position) for each in partitions if each.is_known and (position := each.position())]
            new = [each.to_commit(position) for each, position in positions if not self.commits.is_last_word(each, position)]
        if new:
            try:
                consumer.commit(offsets=new, asynchronous=False)
            except KafkaException as error:
                self.commits.trouble = error_text(error.args[0])
        self._drop(partitions)

    def _hand_over_running(self, partitions: Sequence[Partition]) -> None:
        """Try for as long as the session lasts: a message that is dropped while it runs here would start twice."""
        deadline = time.monotonic() + self.settings.session_timeout
        while (running := [partition for partition in partitions if partition.running]) and not self.assignment.is_closing:
            for partition in running:
                hand_over(self._connection, self._names, self.assignment, partition)
            if time.monotonic() > deadline:
                break
            self._wait_for_running(partitions, RETRY_AFTER)

    def _wait_for_running(self, partitions: Sequence[Partition], within: float) -> None:
        here = self.assignment
        with here.changed:
            here.changed.wait_for(lambda: here.is_closing or not any(partition.running for partition in partitions), within)

    def _on_lost(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        with self.assignment.changed:
            partitions = self.assignment.named(places)
        # This process may have been paused, or the server has, without a word.
        silence = f"no answer for {self.settings.session_timeout:g} s, so the session has ended"
        self.settings.state.hear(KafkaError(ALL_DOWN, silence))
        self._drop(partitions)

    def _abandon(self) -> None:
        """The topic was deleted. Running messages are settled as ever: retries and dead letters are stored. No commit is sent."""
        here = self.assignment
        with here.changed:
            for partition in here.partitions.values():
                partition.abandon()
            here.partitions.clear()
            here.is_joined = here.is_moving = False
            here.changed.notify_all()
        here.ring()

    def _drop(self, partitions: Sequence[Partition]) -> None:
        """These are no longer ours."""
        here = self.assignment
        with here.changed:
            for partition in partitions:
                partition.is_lost = True
                if partition.running and not here.is_closing:
                    here.lost_something = True
                here.partitions.pop(partition.number, None)
            here.changed.notify_all()
        here.ring()


def _by_partition(records: list[Record]) -> Iterable[tuple[int, list[Record]]]:
    """Stretches of records of one partition, in order. Most batches are one."""
    numbers = [record.partition() for record in records]
    if len(set(numbers)) == 1:
        return [(numbers[0], records)]
    return [(number, list(together)) for number, together in groupby(records, lambda record: record.partition())]
