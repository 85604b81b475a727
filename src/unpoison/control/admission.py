"""Keeps a bad deploy from draining its source into the DLQ.

When an unusual share of the messages that end become dead letters, the source is paused: what would have become a dead letter
is kept, uncharged. A probe a minute finds out whether the cause is gone; a new version of the code, or a person, resumes it too.
"""

import msgspec

from unpoison.control.counting import RecentCount
from unpoison.control.options import Admission

PROBE_INTERVAL = 60.0
LATELY = 0.1
"""The part of the time that is looked at by itself too: successes of the minute before would hide that now everything fails."""
SAMPLES = 3


class TooManyDead(msgspec.Struct, frozen=True):
    """Why a source is paused: so many of so many messages would have become dead letters within so many seconds."""

    since: float
    dead: int
    ended: int
    within: float
    samples: tuple[str, ...]


class _Window:
    """What ended in the last so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.dead, self.ended = seconds, RecentCount(seconds), RecentCount(seconds)


class DeadLetterAdmission:
    """Decides for each would-be dead letter of one source whether it becomes one."""

    def __init__(self, options: Admission) -> None:
        self._options = options
        self._windows = [_Window(options.within), _Window(options.within * LATELY)]
        self._samples: list[str] = []
        self.pause: TooManyDead | None = None
        """Why the source is paused; None while it is not."""
        self._probe_at = 0.0

    def succeeded(self, count: int, now: float) -> None:
        for window in self._windows:
            window.ended.add(count, now)

    def admits(self, error: str, now: float) -> bool:
        """A message is to become a dead letter. False if it must be kept instead, and the source is paused."""
        if self.pause is not None:
            return False
        for window in self._windows:
            dead, ended = window.dead.total(now) + 1, window.ended.total(now) + 1
            if dead > self._options.at_least and dead > self._options.share * ended:
                self._note(error)
                self.pause = TooManyDead(now, dead, ended, window.seconds, tuple(self._samples))
                self._probe_at = now + PROBE_INTERVAL
                return False
        if self._windows[0].dead.total(now) == 0:
            self._samples.clear()
        self._note(error)
        for window in self._windows:
            window.dead.add(1, now)
            window.ended.add(1, now)
        return True

    def _note(self, error: str) -> None:
        if error not in self._samples and len(self._samples) < SAMPLES:
            self._samples.append(error)

    def next_probe_in(self, now: float) -> float | None:
        """Seconds until a single message may start although the source is paused; None while it is not paused."""
        return None if self.pause is None else max(0.0, self._probe_at - now)

    def probe_started(self, now: float) -> None:
        self._probe_at = now + PROBE_INTERVAL

    def adopt(self, pause: TooManyDead, now: float) -> None:
        """Another consumer of the fleet has paused the source."""
        if self.pause is None:
            self.pause, self._probe_at = pause, now + PROBE_INTERVAL

    def resume(self) -> None:
        """A probe went well, the code is new, or a person says so. What was counted before no longer counts."""
        self.pause = None
        for window in self._windows:
            window.dead.clear()
            window.ended.clear()
        self._samples.clear()
