"""When has a run nothing left to do, if handlers of one source publish to another?

A consumer that finds its own source empty knows nothing about the message that a neighbour is just handling. So each notes
what it saw together with how often anything had moved by then; the run is over once all have seen emptiness and nothing
has moved since the earliest of these looks.
"""

import threading
from collections.abc import Callable


class Emptiness:
    """Shared by all consumers of a run."""

    def __init__(self, consumers: int = 1) -> None:
        self._consumers = consumers
        self._lock = threading.Lock()
        self._moves = 0
        self._looks: dict[object, tuple[int, Callable[[], None]]] = {}

    def moved(self) -> None:
        """A consumer has taken or settled something, so what others saw before may no longer hold."""
        with self._lock:
            self._moves += 1

    def agreed(self, consumer: object, ring: Callable[[], None], is_empty: Callable[[], bool]) -> bool:
        """True once every source was empty at one and the same time. Those that have to look again are woken by their ring."""
        with self._lock:
            moves = self._moves  # before the look: what moves during it makes it worthless
        if not is_empty():
            return False
        with self._lock:
            self._looks[consumer] = (moves, ring)
            stale = [wake for seen, wake in self._looks.values() if seen != self._moves]
            over = not stale and len(self._looks) == self._consumers
        for wake in stale:
            wake()
        return over
