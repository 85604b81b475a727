"""Does the broker delete messages of this source before they are handled?

Some brokers delete what waits for too long. Only what was never started is in danger: what a consumer puts off is kept under a
time of its own. How long it waits is known from two facts that cost nothing: for how long the source is paused, and when a
message that is fetched was published, of which one is looked at now and then. The broker is asked for its limit only if either
is long.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from unpoison.control.changes import Expiring
from unpoison.errors import UnpoisonError
from unpoison.model.message import UNTRIED, Delivery
from unpoison.port.broker import Broker, Forgets, TellsNative

LOOK_EVERY = 60.0
"""Seconds between two looks, and between two messages whose time is read."""
ASK_EVERY = 3_600.0
"""Seconds between two questions to the broker: a limit hardly ever changes."""
SHORT = 60.0
"""Seconds of waiting for which nobody is asked anything."""
HALF, QUARTER = 0.5, 0.25
"""The share of the limit at which it is told, and the one below which it may be told again."""


class Retention:
    """Tells once when what waits has used up half of the time for which the broker keeps it."""

    def __init__(self, source: str, broker: Broker, clock: Callable[[], float] = time.time) -> None:
        self._source, self._broker, self._clock = source, broker, clock
        self._forgets = broker if isinstance(broker, Forgets) else None
        self._tells_native = broker if isinstance(broker, TellsNative) else None
        self._look_at = self._ask_at = float("-inf")
        self._sample_at: float | None = None
        """When the next message is looked at. Not the first one: a short run asks for nothing."""
        self._sampled = 0.0
        """How old the message was that was looked at last, when it was fetched."""
        self._limit: float | None = None
        self._is_told = False
        self.used: float | None = None
        """How much of the limit had been used up when it was last looked at; None while nothing waits for long."""

    def fetched(self, deliveries: Sequence[Delivery], now: float) -> None:
        """These were fetched. `now` is the clock of the consumer, as in `look`."""
        if self._forgets is None or self._tells_native is None or not deliveries:
            return
        if self._sample_at is None:
            self._sample_at = now + LOOK_EVERY
        if now < self._sample_at:
            return
        self._sample_at, self._sampled = now + LOOK_EVERY, 0.0
        if deliveries[0].counters is UNTRIED:
            with suppress(Exception):  # anything may stand where a time should be
                published = float(self._tells_native.native(deliveries[0]).properties["timestamp"])
                self._sampled = self._clock() - published

    def look(self, paused: float, now: float) -> Expiring | None:
        """What is to be told now, if anything. The source has been paused for so many seconds."""
        if self._forgets is None or now < self._look_at:
            return None
        self._look_at = now + LOOK_EVERY
        sampled = self._sampled if self._sample_at is not None and now < self._sample_at + LOOK_EVERY else 0.0
        limit = self._limit_at(self._forgets, now) if max(paused, sampled) >= SHORT else None
        waited = max(paused, 0.0 if limit is None or sampled > limit else sampled)  # what cannot be was written by its sender
        self.used = None if limit is None else min(1.0, waited / limit)
        if limit is None or waited < QUARTER * limit:
            self._is_told = False
        elif waited >= HALF * limit and not self._is_told and self._has_waiting():
            self._is_told = True
            return Expiring(waited, limit)
        return None

    def _limit_at(self, broker: Forgets, now: float) -> float | None:
        if now >= self._ask_at:
            self._ask_at = now + ASK_EVERY
            with suppress(UnpoisonError):  # a user who may consume need not have the right to see that
                self._limit = broker.deletes_after(self._source)
        return self._limit

    def _has_waiting(self) -> bool:
        with suppress(UnpoisonError):
            return self._broker.depth(self._source).ready > 0
        return False
