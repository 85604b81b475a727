"""How many messages of a partition may be started before the server has confirmed what became of the ones before?

Settling does not wait for a commit, so a consumer that is killed repeats all that was done since the last confirmed one. That
matters most right after a partition was taken over from a consumer that vanished: it may have been killed by a message that comes
again soon. So a new owner begins with few messages at a time and soon doubles that, later after a loss than otherwise.
"""

from collections.abc import Callable
from time import monotonic

AT_FIRST = 8
WITHOUT_LIMIT = 1_000
AFTER_A_LOSS, OTHERWISE = 0.05, 0.02
"""Seconds after which twice as many may be started. It goes by time and not by what is done: slow handlers must not wait for each
other. There is no limit any more after seven times as long."""


class SlowStart:
    """Of one partition, since its first message was handed out here."""

    def __init__(self, doubles_every: float, clock: Callable[[], float] = monotonic) -> None:
        self._doubles_every, self._clock = doubles_every, clock
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
        if self._since is None:
            return AT_FIRST
        return min(WITHOUT_LIMIT, AT_FIRST << min(10, int((self._clock() - self._since) / self._doubles_every)))
