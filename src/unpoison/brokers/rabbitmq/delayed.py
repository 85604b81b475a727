"""Until when are messages of a source delayed?

The queues that delay are shared by all sources of a virtual host; RabbitMQ tells how many messages are in them, and not whose.
So whoever delays a message leaves a note in `<queue>.delayed` that expires a little after the message is back. While no note is
there, nothing that waits is of this source. One note stands for all that is back before it expires, so there are few.
"""

import time
from collections.abc import Callable, Mapping

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.topology import delayed_of
from unpoison.brokers.rabbitmq.writing import Copy

MARGIN, SLACK = 2.0, 1.0
"""Seconds that a note lives on after its message should be back, and how many of them are kept for a server that is busy."""


class DelayNotes:
    """The notes of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._covered: dict[str, float] = {}

    def needed(self, delays: Mapping[str, float]) -> list[Copy]:
        """The notes to store beside messages that are delayed by so many seconds at most, by source."""
        now, found = self._clock(), []
        for source, delay in delays.items():
            if delay > 0 and now + delay > self._covered.get(source, float("-inf")):
                self._covered[source] = now + delay + MARGIN - SLACK
                found.append(Copy("", delayed_of(source), properties.expiring(delay + MARGIN), b""))
        return found

    def forget(self) -> None:
        """Some may not be stored."""
        self._covered.clear()
