"""Tells people what happens to the messages of an app: hears it as an observer, and has it sent.

The threads of consumers only append to a bounded queue. One thread reads it and decides what is told when (`watching.py`,
`limits.py`), asks the store who of the fleet tells it (`claiming.py`), and hands notices to the threads that send them
(`delivering.py`).
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unpoison.control.changes import Change
from unpoison.decide.options import Settings
from unpoison.errors import UnpoisonError
from unpoison.model import verdict
from unpoison.model.events import fields
from unpoison.model.failure import Failure
from unpoison.model.fingerprint import marked
from unpoison.model.message import Delivery
from unpoison.model.wording import counted, in_words
from unpoison.notifying import news
from unpoison.notifying.claiming import Claims
from unpoison.notifying.commands import Commands
from unpoison.notifying.delivering import Delivering
from unpoison.notifying.forms import Written, written
from unpoison.notifying.limits import Rate, together
from unpoison.notifying.notice import Notice, Place
from unpoison.notifying.targets import Target, targets_of
from unpoison.notifying.watching import Watch
from unpoison.port.broker_url import masked
from unpoison.reporting.observer import Event, Observer
from unpoison.store.choice import database_for
from unpoison.store.notices import ToldNotices

log = logging.getLogger("unpoison")

MOST_QUEUED = 10_000
"""News that wait to be read. More are not read: so many come only in a flood, of which enough is known."""
LOOK, GATHER = 1.0, 0.2
"""Seconds after which it looks whether something is due, and for which news are gathered before they are read."""
ASK_AGAIN = 60.0
"""Seconds after which a process may tell its summary if another one of the fleet has just told its own."""
LAST = 2.0
"""Seconds that the end of a run waits for notices at most."""

Heard = tuple[Callable[..., Iterator[news.News]], tuple[Any, ...], float, float]


class Notifier(Observer):
    """The notices of one app. Its threads start with the first news."""

    def __init__(
        self,
        targets: Sequence[Target],
        place: Place,
        commands: Commands,
        claims: Claims,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._place, self._commands, self._claims = place, commands, claims
        self._clock, self._wall = clock, wall
        self._watch, self._rate = Watch(commands), Rate()
        self._heard: deque[Heard] = deque()
        self._answers: deque[tuple[str, bool]] = deque()
        """What became of notices, by their id."""
        self._deliveries = [Delivering(target, self._was_sent, clock=clock) for target in targets]
        self._lock, self._wake, self._closing = threading.Lock(), threading.Event(), threading.Event()
        self._ends_at = float("inf")
        self._thread: threading.Thread | None = None
        self._has_failed, self._sum_up_at = False, float("-inf")

    # In the threads of consumers

    def failed(self, source: str, event: Event, letter_id: str | None) -> None:
        is_dead = isinstance(event.ruling.verdict, verdict.DeadLetter)
        if is_dead or event.failure.crash is not None:
            since = event.counters.first_failed_at
            self._put(self._of_failure, news.failed(source, event.failure, letter_id, since, is_dead=is_dead))

    def given_up(self, source: str, delivery: Delivery, failure: Failure) -> None:
        since, known = delivery.counters.first_failed_at, marked(failure, delivery.source)
        self._put(self._of_failure, news.failed(source, known, None, since, is_dead=True))

    def controlled(self, source: str, changes: Sequence[Change], now: float) -> None:
        self._put(self._of_control, source, tuple(changes), now)

    def lost_broker(self, source: str, error: UnpoisonError) -> None:
        self._put(self._of_broker, source, str(error)[: 2 * news.TOLD_LENGTH])

    def found_broker(self, source: str) -> None:
        self._put(self._of_broker, source, "")

    def _put(self, read: Callable[..., Iterator[news.News]], *about: Any) -> None:
        if len(self._heard) >= MOST_QUEUED:
            return
        self._heard.append((read, about, self._clock(), self._wall()))
        if self._thread is None:
            self._start()
        if not self._wake.is_set():
            self._wake.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="unpoison-notify", daemon=True)
                self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        self._ends_at = self._clock() + LAST
        self._closing.set()
        self._wake.set()
        self._thread.join(LAST)
        left = sum(delivering.join() for delivering in self._deliveries)
        if left or self._thread.is_alive():
            said = f"{counted(left, 'notice')} could not be sent" if left else "What was sent could not be noted in the store"
            log.warning("%s within %s after the end of the run.", said, in_words(LAST), extra=fields("notify-left"))

    # In the thread of the notifier

    def _run(self) -> None:
        for delivering in self._deliveries:
            delivering.start()
        while not self._closing.is_set():
            self._wake.wait(LOOK)
            self._closing.wait(GATHER)
            self._wake.clear()
            self._turn(is_last=False)
        self._turn(is_last=True)
        for delivering in self._deliveries:
            delivering.close(self._ends_at)
        for delivering in self._deliveries:
            delivering.join()
        self._settle()
        self._claims.close()

    def _turn(self, *, is_last: bool) -> None:
        try:
            self.step(is_last=is_last)
        except Exception:  # whatever is wrong with a notice, the next one may be right
            if not self._has_failed:
                text = "A notice could not be made; messages are not affected. This is a bug in unpoison."
                log.exception(text, extra=fields("notify-fault"))
            self._has_failed = True

    def step(self, *, is_last: bool = False) -> None:
        """Read what was heard, and have sent what is due."""
        self._settle()
        for _ in range(len(self._heard)):
            read, about, now, wall = self._heard.popleft()
            for each in read(*about, now, wall):
                self._watch.hear(each, now)
        now = self._clock()
        due = self._watch.due(now, is_last=is_last)
        self._send(self._passing(due, now) if due else [], now)
        summary_at = self._rate.summary_at()
        if summary_at is not None and (now >= max(summary_at, self._sum_up_at) or is_last):
            self._sum_up(now)

    def _of_failure(self, one: news.Failed, now: float, wall: float) -> Iterator[news.News]:
        return news.of_failure(one, now, wall)

    def _of_control(self, source: str, changes: Sequence[Change], control: float, now: float, wall: float) -> Iterator[news.News]:
        return news.controlled(source, changes, news.Moment(now, control, wall), self._commands)

    def _of_broker(self, source: str, said: str, now: float, wall: float) -> Iterator[news.News]:
        yield news.lost_broker(source, said, now, self._commands) if said else news.found_broker(source)

    def _passing(self, due: Sequence[Notice], now: float) -> list[tuple[Notice, Sequence[str]]]:
        """Those that this process tells, with what was claimed for each. The others go into a summary."""
        granted = self._claims.granted(due)
        found: list[tuple[Notice, Sequence[str]]] = []
        for notice in self._rate.passing(together(granted), now):
            subjects = [each.subject for each in granted if each.kind is notice.kind and (notice.parts or each is notice)]
            if self._claims.has_room(notice):
                found.append((notice, subjects))
            else:
                self._rate.hold(notice, now)
        told = {subject for _, subjects in found for subject in subjects}
        self._claims.confirm([each.subject for each in granted if each.subject not in told])  # the summary tells them
        return found

    def _send(self, notices: Sequence[tuple[Notice, Sequence[str]]], now: float) -> None:
        for notice, subjects in notices:
            said = written(notice, self._place, now, self._wall())
            self._claims.expect(said.id, subjects, len(self._deliveries))
            for delivering in self._deliveries:
                delivering.put(said)

    def _sum_up(self, now: float) -> None:
        summary = self._rate.summary([*self._commands.of_letters(), *self._commands.of_status()])
        if summary is not None and self._claims.has_room(summary):
            self._send([(summary, ())], now)
            self._rate.summed_up()
        self._sum_up_at = now + ASK_AGAIN

    def _was_sent(self, said: Written, is_sent: bool) -> None:
        self._answers.append((said.id, is_sent))
        self._wake.set()

    def _settle(self) -> None:
        for _ in range(len(self._answers)):
            self._claims.answered(*self._answers.popleft())


def notifier_for(settings: Settings, app: str) -> Notifier:
    """For an app that has something to notify. `app` is the reference by which it is run."""
    place = Place(socket.gethostname(), os.getpid(), app, settings.notify_link or "")
    told = None
    if settings.store:
        told = ToldNotices(database_for(settings.store, is_queue=True), f"{place.host}:{place.process}")
    commands = Commands(app, masked(settings.url))
    return Notifier(targets_of(settings.notify), place, commands, Claims(told, create=settings.create))
