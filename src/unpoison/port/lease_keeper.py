"""Who tells the server that we are still at work?

A thread that, for as long as messages are held, says so in good time, over a new connection if need be. Handlers may run for
long and nobody else speaks to the server meanwhile. For brokers that take back what they hear nothing of.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from unpoison.errors import UnpoisonError

LONGEST_TICK = 0.5


class Keeper:
    """Calls `renew` about every `every` seconds, and `look` more often."""

    def __init__(self, every: float, renew: Callable[[], None], look: Callable[[], None]) -> None:
        self._every, self._renew, self._look = every, renew, look
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unpoison-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        tick = min(LONGEST_TICK, self._every)
        passed = 0.0
        while not self._ended.wait(tick):
            passed += tick
            if passed >= self._every:
                passed = 0.0
                with suppress(UnpoisonError):  # the next time may be in time; if not, what is held counts as lost
                    self._renew()
            with suppress(UnpoisonError):
                self._look()

    def close(self) -> None:
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
