"""How does a suspect run alone in its consumer process, when several sources share that process?

Like a lock with many ordinary holders and one that wants everybody out: a consumer is inside while it runs anything. One
that has a suspect asks; from then on nobody enters, those inside finish, and then it has the process to itself.
"""

import threading
from collections.abc import Callable


class Alone:
    """Shared by all consumers of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._asking: object | None = None
        self._waiting: dict[object, Callable[[], None]] = {}

    def join(self, consumer: object, ring: Callable[[], None]) -> None:
        """`ring` wakes this consumer when the way is free again."""
        with self._lock:
            self._waiting[consumer] = ring

    def leave(self, consumer: object) -> None:
        """This consumer has ended; whoever waited for it goes on."""
        with self._lock:
            self._waiting.pop(consumer, None)
        self.is_idle(consumer)
        self.done(consumer)

    def enter(self, consumer: object) -> bool:
        """May this consumer start messages now?"""
        with self._lock:
            if self._asking is None:
                self._inside.add(consumer)
            return self._asking is None

    def is_idle(self, consumer: object) -> None:
        """This consumer runs nothing at the moment."""
        with self._lock:
            self._inside.discard(consumer)
            asking = self._waiting.get(self._asking) if self._asking is not None and not self._inside else None
        if asking is not None:
            asking()

    def ask(self, consumer: object) -> bool:
        """True once this consumer, which must be idle, has the process to itself. Until then ask again after the bell."""
        with self._lock:
            if self._asking is None:
                self._asking = consumer
            return self._asking is consumer and not self._inside

    def done(self, consumer: object) -> None:
        """The suspect is settled, or there was none: the others may go on."""
        with self._lock:
            if self._asking is consumer:
                self._asking = None
            others = list(self._waiting.values())
        for ring in others:
            ring()
