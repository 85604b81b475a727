"""How many messages of a partition may start before the server has confirmed what became of the ones before?"""

from collections.abc import Callable
from time import monotonic

AT_FIRST = 8
WITHOUT_LIMIT = 1_000
AFTER_A_LOSS, OTHERWISE = 0.05, 0.02
"""Seconds after which a slow start doubles how many messages may start. It goes by time and not by what is done: slow handlers
must not wait for each other. After seven times as long there is no limit."""


class SlowStart:
    """How many messages of a partition may start before the server has confirmed what became of the ones before?

    Settling does not wait for a commit, so a killed consumer repeats all that was done since the last confirmed one. That matters
    most after a partition was taken over from a consumer that vanished: a message that comes again soon may have killed it. So a
    new owner begins with few messages at a time and doubles that, more slowly after a loss.
    """

    def __init__(self, doubles_every: float, clock: Callable[[], float] = monotonic) -> None:
        self._doubles_every, self._clock = doubles_every, clock
        self._since: float | None = None
        self._held_back_at: int | None = None

    @property
    def is_over(self) -> bool:
        return self._window() >= WITHOUT_LIMIT

    def admit(self, wanted: int, unconfirmed: int) -> int:
        """How many of the `wanted` may start while so many others run, or are done and not confirmed."""
        if self._since is None:
            self._since = self._clock()
        window = self._window()
        admitted = min(wanted, max(0, window - unconfirmed))
        self._held_back_at = window if admitted < wanted else None
        return admitted

    def has_grown(self) -> bool:
        """Whether there is room again for messages that were held back. True once for each time that it grows."""
        if self._held_back_at is None or self._window() <= self._held_back_at:
            return False
        self._held_back_at = None
        return True

    def _window(self) -> int:
        if self._since is None:
            return AT_FIRST
        return min(WITHOUT_LIMIT, AT_FIRST << min(10, int((self._clock() - self._since) / self._doubles_every)))
