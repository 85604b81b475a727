"""Runs suspects: messages that may have brought a consumer process down.

A suspect runs alone, with nothing else in its consumer process and its start on record at the broker. If the process vanishes
then, it is known which message was to blame. `Suspects` looks for them, asks for the process, takes one and runs it.
`ExclusiveRun` gives one consumer the process when several sources share it.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from unpoison.decide import attempts
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import PAUSES, OwnershipLost
from unpoison.flow.settling import GivenUp, NotStarted, Settler, Skipped
from unpoison.model.message import Delivery
from unpoison.port.broker import Broker
from unpoison.port.reading import Unreadable

LOOK_INTERVAL = 0.05
"""Seconds between two looks for a suspect."""

PATIENCE = 1.0
"""Seconds that a suspect waits, at first, for running messages to end. No other message starts in that time."""


class ExclusiveRun:
    """Lets one consumer of a process run a message alone. Shared by all consumers of the process.

    It is a lock with many ordinary holders and one that wants all others out. A consumer is inside while it runs anything. From
    the moment one asks, none enters; those inside finish, and then the one that asked has the process to itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._asking: object | None = None
        self._waiting: dict[object, Callable[[], None]] = {}

    def join(self, consumer: object, ring: Callable[[], None]) -> None:
        """`ring` wakes this consumer when it may run messages again."""
        with self._lock:
            self._waiting[consumer] = ring

    def leave(self, consumer: object) -> None:
        """This consumer has ended; one that waits for it goes on."""
        with self._lock:
            self._waiting.pop(consumer, None)
        self.went_idle(consumer)
        self.done(consumer)

    def enter(self, consumer: object) -> bool:
        """May this consumer start messages now?"""
        with self._lock:
            if self._asking is None:
                self._inside.add(consumer)
            return self._asking is None

    def went_idle(self, consumer: object) -> None:
        """This consumer runs nothing at the moment."""
        with self._lock:
            self._inside.discard(consumer)
            asking = self._waiting.get(self._asking) if self._asking is not None and not self._inside else None
        if asking is not None:
            asking()

    def ask(self, consumer: object) -> bool:
        """True once this consumer, which must be idle, has the process to itself. Until then ask again after the ring."""
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


class Suspects:
    """The suspects of one source. `start` has a message run; once it is settled this consumer goes idle (`went_idle`)."""

    def __init__(
        self,
        options: ConsumerOptions,
        broker: Broker,
        settler: Settler,
        exclusive: ExclusiveRun,
        start: Callable[[Delivery], None],
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._broker, self._settler, self._exclusive = options, broker, settler, exclusive
        self._start, self._name, self._monotonic = start, name, monotonic
        self._running: Delivery | None = None
        self._is_asking = self._is_blind = False
        """Blind: the broker could not say whether a suspect waits. The source is paused then, or a suspect would never start."""
        self._asked_at = self._look_after = self._ask_after = 0.0
        self._patience = PATIENCE

    def join(self, ring: Callable[[], None]) -> None:
        self._exclusive.join(self, ring)

    def leave(self) -> None:
        self._exclusive.leave(self)

    def may_start_others(self) -> bool:
        """May this consumer start ordinary messages now?"""
        return self._exclusive.enter(self)

    def went_idle(self) -> None:
        """This consumer runs nothing at the moment: a suspect that it ran is settled."""
        if self._running is not None:
            self._running = None
            self._end_turn()
        self._exclusive.went_idle(self)

    def is_waiting(self) -> bool:
        """Whether a suspect waits for this process."""
        return self._is_asking and self._running is None

    def check(self) -> None:
        """Raise what the last look for a suspect raised, if the broker still cannot be asked."""
        if self._is_blind:
            self._broker.has_suspect(self._options.source)
            self._is_blind = False

    def start_one(self, *, is_busy: bool, may_start: bool = True) -> bool:
        """Start a suspect if there is one and this process can be had alone. True if one was started or given up.

        While there is other work, suspects get at most half of the time. Raises OwnershipLost if others have the one that runs:
        nothing is fetched meanwhile, so nothing else would notice before it ends.
        """
        if self._running is not None:
            self.keep()
            return False
        now = self._monotonic()
        if not may_start or (is_busy and now < self._look_after) or now < self._ask_after:
            if not may_start and self._is_asking:
                self._stop_asking()
            return False
        self._look_after = now + LOOK_INTERVAL
        try:
            return self._has_process(now) and self._take_and_start()
        except PAUSES:  # reported by the next fetch: see `check`
            self._is_blind = True
            if self._is_asking:  # the broker went away meanwhile: the other consumers do not wait for it
                self._stop_asking()
            return False

    def keep(self) -> None:
        """Keep the suspect that runs. Raises OwnershipLost if others have it: then it is no longer ours to wait for."""
        if self._running is None:
            return
        try:
            with suppress(*PAUSES):  # reported once it is to be settled
                self._broker.extend([self._running])
        except OwnershipLost:
            self._running = None
            self._end_turn()
            raise

    def _has_process(self, now: float) -> bool:
        """Look for a suspect, and ask for the process if there is one."""
        if not self._broker.has_suspect(self._options.source):
            if self._is_asking:
                self._stop_asking()
            return False
        if not self._is_asking:
            self._is_asking, self._asked_at = True, now
        if self._exclusive.ask(self):
            return True
        if now - self._asked_at > self._patience:
            # Running handlers did not finish in time: let everyone resume, and wait twice as long next time.
            self._ask_after = now + self._patience
            self._patience *= 2
            self._stop_asking()
        return False

    def _take_and_start(self) -> bool:
        try:
            suspect = self._broker.take_suspect(self._options.source, self._name)  # from here on its start is on record
            if suspect is None:
                return False
            unstarted = self._unstarted(suspect)
            if unstarted is None:
                self._start(suspect)
                self._running = suspect
            else:
                self._settler.settle_unstarted([unstarted])
            return True
        finally:
            if self._running is None:
                self._end_turn()

    def _end_turn(self) -> None:
        now = self._monotonic()
        self._look_after = now + (now - self._asked_at)
        self._patience = PATIENCE
        self._stop_asking()

    def _unstarted(self, suspect: Delivery) -> NotStarted | None:
        """How to settle a suspect that must not start; None if it may."""
        if isinstance(suspect, Unreadable):
            return GivenUp([suspect], suspect.failure)
        if suspect.is_tombstone and self._options.tombstones == "skip":
            return Skipped([suspect])
        admission = attempts.admit_alone(suspect.counters, self._options.limits)
        return GivenUp([suspect], admission.failure) if isinstance(admission, attempts.GiveUp) else None

    def _stop_asking(self) -> None:
        self._is_asking = False
        self._exclusive.done(self)
