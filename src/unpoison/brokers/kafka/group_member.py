"""How do the messages of one topic get here, and how does the server learn what became of them?

A line is one member of a consumer group. Its keeper, a thread, is the only one that polls: so a long handler never lets the
membership lapse, and everything that Kafka calls back is called there. Nothing is started that lies above the last mark which
the server has confirmed (committing.py).
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import methodcaller
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.committing import ANSWER_WITHIN
from unpoison.brokers.kafka.envelope import Record
from unpoison.brokers.kafka.errors import DENIED, is_final, lacking, told
from unpoison.brokers.kafka.partition import Part
from unpoison.brokers.kafka.rebalancing import Sharing
from unpoison.brokers.kafka.topology import MISSING

POLL, POLL_WHEN_BUSY = 0.02, 0.001
"""Seconds. While one thread is in the client no other can use it, so whoever settles something is heard between two polls."""
WAIT_WHEN_FULL = 0.005
BATCH = 500
MOST_RECORDS, MOST_BYTES = 8_000, 16 * 1024 * 1024
"""What is read ahead of its start."""
SERVE_EVERY = 0.5
LOOK_EVERY, LOOK_FOR = 1.0, 0.5

_topic, _partition = methodcaller("topic"), methodcaller("partition")


class Line(Sharing):
    def __init__(self, settings: dict[str, Any], topic: str, away_topic: str | None, ring: Callable[[], None]) -> None:
        super().__init__(settings, topic, ring)
        self._settings, self.group = settings, settings["group.id"]
        self._away_topic, self._give_back = away_topic, settings.pop("give_back")
        self.on_made_again: Callable[[], None] = lambda: None
        """Told that the topic was deleted and made again."""
        self.is_waited_for = False
        """Whether somebody is fetching at this moment, and waits until what is there was read."""
        self._consumer: Consumer | None = None
        self._keeper: threading.Thread | None = None
        self._subscribed: str | None = None
        self._is_away = False
        self._fetched_at = time.monotonic()
        self._looked_at = 0.0
        self._turn = 0

    # Called by whoever consumes.

    def begin(self, *, fetching: bool) -> None:
        """Be there, and want what comes; or be there only, for somebody who just looks."""
        with self.changed:
            if fetching:
                self._fetched_at = time.monotonic()
                self.commits.marking = True
            if self._keeper is None:
                self._consumer = self._client()
                keep, name = self.commits.watched(self._keep), f"unpoison-kafka-{self.topic}"
                self._keeper = threading.Thread(target=keep, name=name, daemon=True)
                self._keeper.start()

    def _client(self) -> Consumer:
        return Consumer(self._settings | {"on_commit": self.commits.on_commit})

    def check(self) -> None:
        """Raise if nothing will come, or could be settled if it came."""
        self.connecting.check()
        self.commits.check()

    def take(self, limit: int) -> list[tuple[Part, list[Record]]]:
        """At most so many that may be started now, from one partition after the other."""
        taken: list[tuple[Part, list[Record]]] = []
        with self.changed:
            parts = [part for part in self.parts.values() if part.ready]
            if parts:
                self._turn = (self._turn + 1) % len(parts)
                parts = parts[self._turn :] + parts[: self._turn]
            for number, part in enumerate([*parts, *parts]):  # once more for what others have left over
                share = -(-limit // max(1, len(parts) - number))
                taken.append((part, part.give(share)))
                limit -= len(taken[-1][1])
        return taken

    def rest(self) -> None:
        """Nothing is wanted for the moment: what was not started can be had by others as if it had never been here."""
        with self.changed:
            self.commits.marking = False
            for part in self.parts.values():
                part.unmark()

    def close(self) -> None:
        with self.changed:
            self.closing, keeper = True, self._keeper
            self.rest()
            self.changed.notify_all()
        if keeper is not None:
            keeper.join(30)
            self._keeper = None

    # The keeper.

    def _keep(self) -> None:
        consumer = self._consumer
        assert consumer is not None  # noqa: S101 - made before the thread
        served_at = 0.0
        while not self.closing:
            consumer = self._look_at_topic(consumer)
            self._subscribe(consumer)
            is_full = self._is_full()
            if is_full:
                time.sleep(WAIT_WHEN_FULL)  # not woken by whoever takes or settles something: that happens all the time
            if not is_full or self.commits.is_under_way or time.monotonic() - served_at > SERVE_EVERY:
                self._poll(consumer, 1 if is_full else BATCH)  # also if it is full: the answer to a commit comes in no other way
                served_at = time.monotonic()
            self._look_who_is_there(consumer)
            self.read_ledgers(consumer)
            self.shelf.tick()
            self.commits.send(consumer)
            self._go_on_after_a_slow_start()
            if self.commits.is_over and self.parts:  # the client does not say that these are lost
                self.drop(list(self.parts.values()))
        self._leave(consumer)

    def _look_at_topic(self, consumer: Consumer) -> Consumer:
        """The client goes on as if nothing had happened when its topic is deleted and made again, so it is replaced."""
        if self.watch is None:
            return consumer
        self.watch.tick()
        now, before = self.watch.id_of(self.topic), self.topic_id
        if now is None or now == before:
            return consumer
        self.topic_id = now
        if before is None:
            return consumer
        self.abandon()
        with suppress(KafkaException, RuntimeError):
            consumer.close()
        self.commits.begin_anew()
        self._consumer, self._subscribed = self._client(), None
        if now != MISSING:
            self.on_made_again()
        return self._consumer

    def _go_on_after_a_slow_start(self) -> None:
        for part in list(self.parts.values()):
            if part.slow_start is None:
                continue
            if part.slow_start.has_grown():
                self.ring()
            if part.slow_start.is_over:
                part.slow_start = None

    def _subscribe(self, consumer: Consumer) -> None:
        """Be a member while somebody fetches; leave the partitions to others if messages wait here that nobody fetches."""
        with self.changed:
            waiting = any(part.ready or part.fresh or part.marking for part in self.parts.values())
            quiet = 0.0 if self.is_waited_for else time.monotonic() - self._fetched_at
            self._is_away = quiet > self._give_back and (waiting or self._is_away)
            topic = self._away_topic if self._is_away else self.topic
            topic = None if self.topic_id == MISSING else topic
        if topic == self._subscribed:
            return
        if topic is None:
            consumer.unsubscribe()
        else:
            with suppress(KafkaException):
                # A client that is connected joins at once; one that is not looks again after a second.
                consumer.list_topics(topic, timeout=ANSWER_WITHIN)
            consumer.subscribe([topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)
        self._subscribed, self.is_moving = topic, topic is not None

    def _look_who_is_there(self, consumer: Consumer) -> None:
        """After all servers have gone: until one answers. Whoever waits for messages is told meanwhile."""
        if not self.connecting.is_doubtful or time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        try:
            consumer.list_topics(self.topic, timeout=LOOK_FOR)
            self.connecting.answered()
        except KafkaException:
            self.ring()
        self._looked_at = time.monotonic()

    def _poll(self, consumer: Consumer, most: int) -> None:
        record = consumer.poll(min(POLL_WHEN_BUSY if self._is_busy() else POLL, self.shelf.sleep()))
        if record is None:
            return
        records = cast("list[Record]", [record, *(consumer.consume(most - 1, 0) if most > 1 else ())])
        with self.changed:
            self._arrive(records)
            self.changed.notify_all()

    def pause(self, part: Part, *, paused: bool) -> None:
        """Read on in a partition, or not. In the keeper only."""
        if self._consumer is not None:
            change = self._consumer.pause if paused else self._consumer.resume
            with suppress(KafkaException):  # it has just gone elsewhere
                change([TopicPartition(self.topic, part.number)])
                part.is_paused = paused

    def _is_busy(self) -> bool:
        return any(part.hand or part.ready or part.fresh for part in self.parts.values())

    def _arrive(self, records: Sequence[Record]) -> None:
        """Thousands of times a second: nothing here is done for each record that can be done for many."""
        good = [record for record in records if record.error() is None]
        if not all(map(self.topic.__eq__, map(_topic, good))):
            good = [record for record in good if record.topic() == self.topic]
        for number, together in groupby(good, _partition):
            self.commits.is_denied = False
            if part := self.parts.get(number):
                self.arrive_in(part, list(together))
        if len(good) < len(records):
            for record in records:
                if error := record.error():
                    self._told(record, error)

    def _told(self, record: Record, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no other name for it
            part = self.parts.get(record.partition())
            if part is not None and record.topic() == self.topic:
                self.commits.is_denied = False
                part.at_end = record.offset()
                if part.is_known:
                    part.ends_at(record.offset())
            return
        self.commits.trouble = told(lacking(error, f"Read on topic {self.topic!r} and on group {self.group!r}"))
        self.commits.is_denied = error.code() in DENIED
        self.commits.is_over |= is_final(error)

    def _is_full(self) -> bool:
        parts = list(self.parts.values())
        count = sum(len(part.ready) + len(part.fresh) + len(part.marking) + len(part.early) for part in parts)
        return count > MOST_RECORDS or sum(part.size for part in parts) > MOST_BYTES

    def _leave(self, consumer: Consumer) -> None:
        deadline = time.monotonic() + ANSWER_WITHIN
        with suppress(KafkaException):
            while time.monotonic() < deadline:
                self.commits.send(consumer)
                with self.changed:
                    # Whoever goes while its group is shared out anew is waited for there until its session ends.
                    if self.commits.are_confirmed() and not self.is_moving:
                        break
                consumer.poll(0.01)
        self.shelf.close()
        with suppress(KafkaException, RuntimeError):
            consumer.close()
        with self.changed:
            self.parts.clear()
            self.commits.forget()
