"""Which acknowledgements are due, if one can speak for many?

A finished stretch without a hole in it takes one cumulative ack. What is finished beyond the first hole is acked one by
one, in one write, once enough has gathered or the hole has lasted: one slow message holds nobody hostage.
"""

import time
from collections.abc import Callable, Iterable

HOLE_LASTS = 0.05
"""Seconds after which a hole is no longer waited for."""

Ack = tuple[int, bool]
"""A tag, and whether it speaks for all before it."""


class Acks:
    """The tags of one channel, from 1."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 1
        self._finished: set[int] = set()
        self._singly: set[int] = set()
        self._since = 0.0

    def finish(self, tags: Iterable[int], enough: int) -> list[Ack]:
        """These have ended; returns what is to be acked now. `enough` finished ones beyond a hole do not wait for it."""
        if not self._finished:
            self._since = self._clock()
        self._finished.update(tags)
        acks = self._prefix()
        if self._finished and (len(self._finished) >= enough or self._clock() - self._since >= HOLE_LASTS):
            acks += self.flush()
        return acks

    def flush(self) -> list[Ack]:
        """Ack all that is finished, hole or not."""
        acks = [(tag, False) for tag in sorted(self._finished)]
        self._singly |= self._finished
        self._finished.clear()
        return acks

    @property
    def is_waiting(self) -> bool:
        return bool(self._finished)

    def _prefix(self) -> list[Ack]:
        start = self._next
        finished, singly = self._finished, self._singly
        last = 0
        while True:
            if self._next in finished:
                finished.discard(self._next)
                last = self._next
            elif self._next in singly:
                singly.discard(self._next)
            else:
                break
            self._next += 1
        if last == 0:
            return []
        self._since = self._clock()
        return [(last, last > start)]
