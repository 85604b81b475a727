"""How does the server learn what became of messages, without anybody waiting for it?

Marks are committed as soon as something was read, so that they are there before it is wanted. One commit at a time is on its
way, for all partitions of a line, and the next one says all that happened meanwhile.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from unpoison.brokers.kafka.errors import is_final, lacking, told
from unpoison.brokers.kafka.partition import Part
from unpoison.errors import BrokerUnavailable

RETRY_AFTER = 0.2
CONFIRMED_WITHIN = 10.0
"""Seconds after which it is told as trouble that the server confirms nothing."""
ANSWER_WITHIN = 5.0


class Commits:
    def __init__(self, topic: str, changed: threading.Condition, parts: Mapping[int, Part], ring: Callable[[], None]) -> None:
        self._topic, self._changed, self._parts, self._ring = topic, changed, parts, ring
        self.marking = False
        """Whether what was read is wanted: then marks move past it."""
        self.trouble: str | None = None
        self.is_denied = False
        """Whether it is a permission that we lack: then nobody waits for something to come."""
        self.is_over = False
        """Whether nothing will come here any more, for as long as this process lives."""
        self.is_under_way = False
        self._sent: dict[int, tuple[Part, tuple[int, str]]] = {}
        self._silent_since: float | None = None
        self._not_before = 0.0

    def watched(self, keep: Callable[[], None]) -> Callable[[], None]:
        """The same work; if it breaks, whoever fetches is told so. Else everybody would wait for a thread that is no more."""

        def watched() -> None:
            try:
                keep()
            except BaseException as error:
                self.trouble, self.is_over = f"{type(error).__name__}: {error}", True
                raise

        return watched

    def wait(self, *, anyway: bool) -> None:
        """Give the server a moment to confirm everything, if that is asked for or nothing else is to be done."""
        with self._changed:
            if anyway or all(part.is_idle for part in self._parts.values()):
                self._changed.wait_for(self.are_confirmed, ANSWER_WITHIN)

    def require(self) -> None:
        """As wait, and raise if the server has not confirmed it in time."""
        with self._changed:
            self.wait(anyway=True)
            is_confirmed = self.are_confirmed()
        if not is_confirmed:
            raise BrokerUnavailable(
                f"Kafka has not confirmed a commit to {self._topic!r} within {ANSWER_WITHIN:g} s{self._why()}. Nothing is "
                f"started before it has."
            )

    def check(self) -> None:
        """Raise if the server has kept silent for too long: whatever were started now could not be settled."""
        if self.is_over:
            raise BrokerUnavailable(
                f"Kafka gives this consumer nothing of {self._topic!r} any more{self._why()}. If the URL has instance=, another "
                f"process may have come under the same name: give each its own. Then start this one again."
            )
        if self.is_denied:
            raise BrokerUnavailable(f"Kafka lets us read nothing of {self._topic!r}{self._why()}.")
        since = self._silent_since
        if since is not None and time.monotonic() - since > CONFIRMED_WITHIN:
            raise BrokerUnavailable(f"Kafka has confirmed no commit to {self._topic!r} for {CONFIRMED_WITHIN:g} s{self._why()}.")

    def _why(self) -> str:
        return f" ({self.trouble})" if self.trouble else ""

    def are_confirmed(self) -> bool:
        return not self.is_under_way and all(
            part.confirmed == position for part in self._parts.values() if part.is_known and (position := part.position())
        )

    def forget(self, number: int | None = None) -> None:
        """A partition, or all of them, are no longer ours to speak of. An answer may still be on its way."""
        for each in [number] if number is not None else list(self._sent):
            self._sent.pop(each, None)

    # In the keeper.

    def begin_anew(self) -> None:
        """With a new client: what the old one had sent is not answered any more."""
        with self._changed:
            self._sent, self.is_under_way, self.trouble, self._silent_since = {}, False, None, None
            self._changed.notify_all()

    def send(self, consumer: Consumer) -> None:
        """Say what has changed, unless something is on its way: then that is followed by the next one."""
        with self._changed:
            if self.is_under_way or time.monotonic() < self._not_before:
                return
            self._sent = self._news()
            for part, _ in self._sent.values():
                part.tell()
            places = [part.place(position) for part, position in self._sent.values()]
            self.is_under_way = bool(places)
            if not places:
                return
            self._silent_since = self._silent_since or time.monotonic()
        try:
            consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            with self._changed:
                self._failed(error.args[0])

    def _news(self) -> dict[int, tuple[Part, tuple[int, str]]]:
        found: dict[int, tuple[Part, tuple[int, str]]] = {}
        for number, part in self._parts.items():
            if not part.is_known or part.is_revoked:
                continue
            if self.marking:
                part.mark()
            position = part.position()
            if position is not None and position != part.confirmed:
                found[number] = (part, position)
            elif part.marking:  # the last owner's mark says the same
                self._free(part)
        return found

    def _free(self, part: Part) -> None:
        part.free()
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
        for part, position in sent.values():
            part.confirm(position)
            if part.marking:
                self._free(part)
            elif part.slow_start is not None:
                self._ring()

    def _failed(self, error: KafkaError) -> None:
        """Say it again a little later. If the partition is no longer ours Kafka tells that too."""
        self.trouble = told(lacking(error, f"Read on topic {self._topic!r} and on its group"))
        self.is_over |= is_final(error)
        for part, _ in self._sent.values():
            part.unmark_failed()
        self._sent, self.is_under_way = {}, False
        self._not_before = time.monotonic() + RETRY_AFTER
