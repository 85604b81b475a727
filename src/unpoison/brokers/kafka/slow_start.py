"""How many messages of a partition may be started before the server has confirmed what became of the ones before?

Settling does not wait for a commit, so a consumer that is killed repeats all that was done since the last confirmed one. That
matters most right after a partition was taken over: the last owner may have been killed by a message that comes again soon. So
a new owner begins with few messages at a time, and twice as many every 50 ms. After a third of a second there is no limit.
"""

from collections.abc import Callable
from time import monotonic

AT_FIRST = 8
DOUBLES_EVERY = 0.05
"""Seconds. It goes by time and not by what is done: slow handlers must not wait for each other."""
WITHOUT_LIMIT = 1_000


class SlowStart:
    """Of one partition, since its first message was handed out here."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._held_back_at: int | None = None

    @property
    def is_over(self) -> bool:
        return self._window() >= WITHOUT_LIMIT

    def admit(self, wanted: int, unconfirmed: int) -> int:
        """How many of these may be started, while so many others are started or done and not confirmed."""
        if self._since is None:
            self._since = self._clock()
        window = self._window()
        admitted = min(wanted, max(0, window - unconfirmed))
        self._held_back_at = window if admitted < wanted else None
        return admitted

    def has_grown(self) -> bool:
        """Whether there is room again for what was held back. True once for each time that it grows."""
        if self._held_back_at is None or self._window() <= self._held_back_at:
            return False
        self._held_back_at = None
        return True

    def _window(self) -> int:
        return AT_FIRST if self._since is None else AT_FIRST * 2 ** int((self._clock() - self._since) / DOUBLES_EVERY)
