"""Take messages that must run alone, with each start on record.

They are received, one at a time, from a queue of their own, and held there while they run. SQS counts how often it handed a
message out: here that is how often it was started. Notes of who started it are stored in another queue.
"""

import time
from collections.abc import Callable

from unpoison.brokers.sqs import writing
from unpoison.brokers.sqs.client import Client
from unpoison.brokers.sqs.envelope import Envelope, Raw
from unpoison.brokers.sqs.queue_pass import look_through
from unpoison.brokers.sqs.subscription import Subscription
from unpoison.brokers.sqs.topology import Topic
from unpoison.errors import BrokerUnavailable

LOOK_EVERY = 1.0
"""Seconds between two looks: each is a request that costs time and money."""

MOST_NOTES = 500


class Suspects:
    """The messages of one source that must run alone, with notes of their starts."""

    def __init__(self, topic: Topic, client: Client, ring: Callable[[], None]) -> None:
        self._topic, self._client = topic, client
        self.subscription = Subscription(topic.suspects, client.connection, ring)
        self._looked_at: float | None = None
        self._has_one = False

    def has_one(self) -> bool:
        """Whether one can be taken; asked again once in a while, and at once after we have stored one there."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY:
            self._has_one = self._client.counts(self._topic.suspects)[0] > 0
            self._looked_at = now
        return self._has_one

    def look_again(self) -> None:
        self._looked_at = None

    def receive(self) -> Raw | None:
        self._looked_at = None
        self.subscription.pull(1)
        taken = self.subscription.take(1)
        return taken[0] if taken else None

    def store(self, stamp: str, note: bytes) -> None:
        if refused := self._client.store([writing.copy(self._topic.starts, note, Envelope())]):
            raise BrokerUnavailable(f"SQS refuses to note a start: {refused[0].text}.")

    def find(self, stamp: str) -> list[str]:
        return [raw["Body"] for raw in look_through(self._client, self._topic.starts, MOST_NOTES)]
