"""Keeps a bad deploy from draining its source into the DLQ.

When an unusual share of the messages that end become dead letters, the source is paused: what would have become a dead letter
is kept, uncharged. A probe a minute by each consumer finds out whether the cause is gone; a new version of the code, or a
person, resumes it too.

One probe that succeeds shows little where only a part of the messages fails. So the source is then on probation: at first nothing
becomes a dead letter, and it is paused again sooner than before. Each time that happens, the next probe comes later.
"""

import math

import msgspec

from unpoison.control.counting import RecentCount
from unpoison.control.options import Admission

PROBE_INTERVAL = 60.0
LONGEST_INTERVAL = 900.0
"""Seconds between two probes of a source that was paused again and again after one had succeeded."""
LATELY = 0.1
"""The part of the time that is looked at by itself too: successes of the minute before would hide that now everything fails."""
SAMPLES = 3
FEW = 0.1
"""The share of `at_least` that is enough, on probation, to pause a source on which most messages fail. It is also how many dead
letters are admitted after the first clean window."""
MOST = 0.5
"""The share of failures above which most messages fail."""
MANY = 4
"""Times `at_least` that are kept, on probation, before a source is paused on which most messages succeed."""


class TooManyDead(msgspec.Struct, frozen=True):
    """Why a source is paused: so many of so many messages would have become dead letters within so many seconds. Each consumer
    tries one message every `interval` seconds."""

    since: float
    dead: int
    ended: int
    within: float
    samples: tuple[str, ...]
    interval: float = PROBE_INTERVAL


class _Window:
    """What ended in the last so many seconds. `dead` were to become dead letters; on probation most of them are kept."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.dead, self.ended = seconds, RecentCount(seconds), RecentCount(seconds)


class _Probation(msgspec.Struct):
    """What a source may do that goes on since a probe has succeeded. It counts in windows of `within` seconds."""

    begun: float
    window: float
    """When the window began that counts at present."""
    allowed: int = 0
    """How many dead letters each window admits."""
    letters: int = 0
    """How many this window has admitted."""
    has_successes: bool = False
    """Whether messages have succeeded in it."""


class DeadLetterAdmission:
    """Decides for each would-be dead letter of one source whether it becomes one."""

    def __init__(self, options: Admission) -> None:
        self._options = options
        self._windows = [_Window(options.within), _Window(options.within * LATELY)]
        self._samples: list[str] = []
        self.pause: TooManyDead | None = None
        """Why the source is paused; None while it is not."""
        self._interval, self._probe_at = PROBE_INTERVAL, 0.0
        self._probation: _Probation | None = None

    def succeeded(self, count: int, now: float) -> None:
        for window in self._windows:
            window.ended.add(count, now)
        if self._probation is not None and count:
            self._probation.has_successes = True
            self._extend(self._probation, now)

    def admits(self, error: str, now: float, *, was_kept: bool = False) -> bool:
        """A message is to become a dead letter. False if it must be kept instead: the source is paused, or on probation. There a
        message that `was_kept` before is no further evidence."""
        if self.pause is not None:
            return False
        if self._probation is not None:
            self._extend(self._probation, now)
        if self._probation is not None and was_kept:
            return self._is_allowed(self._probation)
        if self._windows[0].dead.total(now) == 0:
            self._samples.clear()
        if error not in self._samples and len(self._samples) < SAMPLES:
            self._samples.append(error)
        for window in self._windows:
            dead, ended = window.dead.total(now) + 1, window.ended.total(now) + 1
            if self._are_too_many(dead, ended):
                self._begin_pause(dead, ended, window.seconds, now)
                return False
        for window in self._windows:
            window.dead.add(1, now)
            window.ended.add(1, now)
        return self._probation is None or self._is_allowed(self._probation)

    def _is_allowed(self, probation: _Probation) -> bool:
        probation.letters += 1
        return probation.letters <= probation.allowed

    def _are_too_many(self, dead: int, ended: int) -> bool:
        least, share = self._options.at_least, self._options.share
        if self._probation is None:
            return dead > least and dead > share * ended
        most_fail = dead > self._few and dead > max(MOST, share) * ended
        return most_fail or (dead > MANY * least and dead > share * ended)

    @property
    def _few(self) -> int:
        return math.ceil(FEW * self._options.at_least)

    def _begin_pause(self, dead: int, ended: int, within: float, now: float) -> None:
        self._note_relapse()
        self.pause = TooManyDead(now, dead, ended, within, tuple(self._samples), self._interval)
        self._probe_at = now + self._interval

    def _note_relapse(self) -> None:
        if self._probation is not None:
            self._interval, self._probation = min(LONGEST_INTERVAL, 2 * self._interval), None

    def _extend(self, probation: _Probation, now: float) -> None:
        """A window that was not paused, and in which messages succeeded, doubles what the next one admits. Nothing is learned in
        one without messages."""
        if now - probation.window < self._options.within or not probation.has_successes:
            return
        probation.allowed = max(self._few, 2 * probation.allowed)
        probation.window, probation.letters, probation.has_successes = now, 0, False
        if probation.allowed >= self._options.at_least:
            self._interval, self._probation = PROBE_INTERVAL, None

    @property
    def is_on_probation(self) -> bool:
        """Whether the source goes on because a probe has succeeded, and it is not known yet that the cause is gone."""
        return self._probation is not None

    def tries_kept(self, now: float) -> bool:
        """Whether messages that were kept may start again. Not in the first window after a probe: those that are known to fail
        would be the first, and hide that others succeed."""
        return self._probation is None or now - self._probation.begun >= self._options.within

    def next_probe_in(self, now: float) -> float | None:
        """Seconds until a single message may start although the source is paused; None while it is not paused."""
        return None if self.pause is None else max(0.0, self._probe_at - now)

    def probe_started(self, now: float) -> None:
        self._probe_at = now + self._interval

    def adopt(self, pause: TooManyDead, now: float) -> None:
        """Another consumer of the fleet has paused the source."""
        if self.pause is None:
            self._note_relapse()
            self._interval = min(LONGEST_INTERVAL, max(self._interval, pause.interval))
            self.pause, self._probe_at = pause, now + self._interval

    def try_again(self, now: float) -> None:
        """A probe has succeeded, here or in another consumer: the source goes on, on probation."""
        self._forget()
        self._probation = _Probation(now, now)

    def resume(self) -> None:
        """The code is new, or a person says so. What was counted before no longer counts."""
        self._forget()
        self._interval, self._probation = PROBE_INTERVAL, None

    def _forget(self) -> None:
        self.pause = None
        for window in self._windows:
            window.dead.clear()
            window.ended.clear()
        self._samples.clear()
