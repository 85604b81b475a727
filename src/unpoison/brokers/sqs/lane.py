"""How is a message that must run alone taken, so that its start is on record?

It is received, one at a time, from a queue of its own, and held there while it runs. SQS counts for each message how often it was
received: in this queue that is how often it was started. Who started it is noted in another queue, and looked up if the message
comes back. Nothing is decided by these notes: they are for whoever reads the letter.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from unpoison.brokers.sqs import envelope, writing
from unpoison.brokers.sqs.envelope import Envelope, Raw
from unpoison.brokers.sqs.looking import look_through
from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.taking import Taking
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.writing import Copy
from unpoison.model.message import Counters
from unpoison.port.serialization import UNREADABLE

LOOK_EVERY = 1.0
"""Seconds between two looks: each is a request that costs time and money."""

MOST_NOTES = 500


class Start(msgspec.Struct, frozen=True):
    """One start of one message, alone in its consumer."""

    stamp: str
    by: str
    at: float


class Lane:
    """The messages of one source that must run alone."""

    def __init__(self, topic: Topic, session: Session, ring: Callable[[], None]) -> None:
        self._topic, self._session = topic, session
        self.taking = Taking(topic.suspects, session.link, ring)
        self._looked_at: float | None = None
        self._has_one = False

    def has_one(self) -> bool:
        """Whether one can be taken; asked anew once in a while, and at once after we have put one there."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY:
            self._has_one = self._session.counts(self._topic.suspects)[0] > 0
            self._looked_at = now
        return self._has_one

    def look_again(self) -> None:
        self._looked_at = None

    def take(self) -> Raw | None:
        self._looked_at = None
        self.taking.pull(1)
        taken = self.taking.take(1)
        return taken[0] if taken else None

    def note(self, stamp: str, by: str) -> Copy:
        return writing.copy(self._topic.starts, msgspec.json.encode(Start(stamp, by, time.time())), Envelope())

    def lost(self, raw: Raw, stamp: str, counters: Counters) -> Counters:
        """Counters of a message with the starts, since it was last stored, that never came to an end."""
        times = envelope.received(raw) - 1
        latest = self._noted(stamp)[-times:] if times else []
        counters = msgspec.structs.replace(counters, alone=True, losses=counters.losses + times - len(latest))
        for start in latest:
            counters = counters.marked(start.by, start.at)
        return counters

    def _noted(self, stamp: str) -> list[Start]:
        found: list[Start] = []
        for raw in look_through(self._session, self._topic.starts, MOST_NOTES):
            with suppress(*UNREADABLE):
                found.append(msgspec.json.decode(raw["Body"], type=Start))
        return sorted((start for start in found if start.stamp == stamp), key=lambda start: start.at)
