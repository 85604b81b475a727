"""Sends notices to one target, in a thread of its own: a target that is slow or down holds up no other one.

What fails is tried again, each time later, as long as it makes sense to tell it. What cannot be sent costs one log line, until
something was sent again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from unpoison.model.events import fields
from unpoison.notifying.forms import Written
from unpoison.notifying.sending import TIMEOUT, Answer, send
from unpoison.notifying.targets import Target

log = logging.getLogger("unpoison")

MOST_WAITING = 100
"""Notices that wait for one target. Of more the oldest are given up."""
GIVE_UP = 600.0
"""Seconds for which a notice is tried to be sent."""
FIRST_WAIT, LONGEST_WAIT, LAST_WAIT = 1.0, 60.0, 0.5
"""Seconds before the second try; each further one comes twice as late, up to the longest. And before a try at the end of the
process."""

Sent = Callable[[Written, bool], None]
"""Told of each notice whether it was sent, or given up."""


class Delivering:
    """The notices that wait for one target."""

    def __init__(
        self,
        target: Target,
        told: Sent,
        *,
        clock: Callable[[], float] = time.monotonic,
        once: Callable[[Target, Written, float], Answer] = send,
    ) -> None:
        self._target, self._told, self._clock, self._once = target, told, clock, once
        self._waiting: deque[tuple[float, Written]] = deque()
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._ends_at: float | None = None
        self._tries, self._not_before = 0, float("-inf")
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"unpoison-notify-{target.shown}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, said: Written) -> None:
        """Send it when its turn comes. Never waits."""
        dropped = None
        with self._lock:
            self._waiting.append((self._clock(), said))
            if len(self._waiting) > MOST_WAITING:
                _, dropped = self._waiting.popleft()
        if dropped is not None:
            self._give_up(dropped, f"more than {MOST_WAITING} notices wait for it")
        self._wake.set()

    def close(self, ends_at: float) -> None:
        """Send what waits, until this time by the clock at the latest."""
        self._ends_at = ends_at
        self._wake.set()

    def join(self) -> int:
        """Wait for that, and say how many notices are left behind."""
        self._thread.join(max(0.0, (self._ends_at or 0.0) - self._clock()))
        with self._lock:
            return len(self._waiting)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            wait = self.step()
            if self._ends_at is not None and (not self._waiting or self._clock() + (wait or 0.0) >= self._ends_at):
                return
            self._wake.wait(wait)

    def step(self) -> float | None:
        """Try to send what has waited for longest. Returns how many seconds to wait then; None: until there is something."""
        with self._lock:
            if not self._waiting:
                return None
            since, said = self._waiting[0]
        if (wait := self._not_before - self._clock()) > 0:
            return wait
        left = TIMEOUT if self._ends_at is None else min(TIMEOUT, self._ends_at - self._clock())
        answer = self._once(self._target, said, max(0.1, left))
        if not answer.is_sent and not answer.is_final and self._clock() - since < GIVE_UP:
            return self._put_off(answer.retry_after)
        self._tries = 0
        self._take(said)
        if answer.is_sent:
            self._succeeded(said, answer)
        else:
            self._give_up(said, answer.said)
        return 0.0

    def _put_off(self, asked: float | None) -> float:
        self._tries += 1
        backoff = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self._tries - 1, 10))
        if self._ends_at is not None:
            backoff = LAST_WAIT
        wait = backoff if asked is None else max(asked, FIRST_WAIT)
        self._not_before = self._clock() + wait
        return wait

    def _take(self, said: Written) -> None:
        with self._lock:
            if self._waiting and self._waiting[0][1] is said:
                self._waiting.popleft()

    def _succeeded(self, said: Written, answer: Answer) -> None:
        if self._is_failing:
            log.warning(
                "Notices to %s are sent again.", self._target.shown, extra=fields("notify-back", target=self._target.shown)
            )
        self._is_failing = False
        extra = fields("notified", target=self._target.shown)
        log.debug("Sent the notice %r to %s: %s", said.notice.title, self._target.shown, answer.said, extra=extra)
        self._told(said, True)

    def _give_up(self, said: Written, why: str) -> None:
        if not self._is_failing:
            log.error(
                "The notice %r could not be sent to %s: %s. It is given up; messages are not affected. This is logged once, "
                "until a notice is sent again. To try it: unpoison notify",
                said.notice.title,
                self._target.shown,
                why.rstrip("."),
                extra=fields("notify-failed", target=self._target.shown),
            )
        self._is_failing = True
        self._told(said, False)
