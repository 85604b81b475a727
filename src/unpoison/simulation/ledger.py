"""What is counted while a simulation runs?"""

from collections.abc import Sequence
from typing import NamedTuple

from unpoison.control.changes import Change, Closed, Opened, Paused, Resumed
from unpoison.model.message import UNTRIED, Delivery
from unpoison.reporting import control_lines
from unpoison.reporting.observer import Event
from unpoison.reporting.report import Report
from unpoison.simulation.scenario import BEFORE, Scenario

TOLD = 12
"""Decisions of the state machines that are kept, the first ones."""


class Told(NamedTuple):
    """What a state machine has decided, so many seconds after the trouble began."""

    at: float
    event: str
    text: str


class Ledger:
    """Times are those of the simulation's clock."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.done = self.dead = 0
        self.calls: list[int] = []
        """By second."""
        self.waiting: list[int] = []
        """At the end of each second."""
        self.most_charged = self.most_charged_finally = 0
        """At any time, and when a message was done or dead: charges may be taken back in between."""
        self.most_put_off = self.put_offs = self.messages_put_off = 0
        self.probes: list[float] = []
        self.works_again_at: float | None = None
        """When something succeeded for the first time after the trouble."""
        self.told: list[Told] = []
        self.changes = 0
        self._is_paused = False
        self._down: set[str] = set()

    def called(self, deliveries: Sequence[Delivery], calls: int, failed: int, now: float) -> None:
        """These have been started."""
        second = int(now)
        self.calls += [0] * (second + 1 - len(self.calls))
        self.calls[second] += calls
        if self.works_again_at is not None:
            return
        if self._is_paused or self._down:
            self.probes += [now for delivery in deliveries if self._is_probe(delivery)]
        if now >= self._scenario.ends and calls > failed:
            self.works_again_at = now

    def _is_probe(self, delivery: Delivery) -> bool:
        counters = delivery.counters
        return self._is_paused or bool(counters.put_off and counters.waits_for in self._down)

    def gave_up(self, attempts: int) -> None:
        self.dead += 1
        self.charged(attempts)
        self.most_charged_finally = max(self.most_charged_finally, attempts)

    def finished(self, deliveries: Sequence[Delivery]) -> None:
        self.done += len(deliveries)
        for delivery in deliveries:
            if delivery.counters is not UNTRIED:
                self.most_charged_finally = max(self.most_charged_finally, delivery.counters.charged)

    def charged(self, attempts: int) -> None:
        self.most_charged = max(self.most_charged, attempts)

    def put_off(self, times: int) -> None:
        """A message was put back uncharged, for the so-manieth time."""
        self.put_offs += 1
        self.messages_put_off += times == 1
        self.most_put_off = max(self.most_put_off, times)

    def decided(self, source: str, changes: Sequence[Change], now: float) -> None:
        """What the state machines have decided."""
        self.changes += len(changes)
        for line in control_lines.lines(source, changes, now):
            if len(self.told) < TOLD:
                self.told.append(Told(round(now - BEFORE, 3), line.event, line.text))
        for change in changes:
            match change:
                case Paused():
                    self._is_paused = True
                case Resumed():
                    self._is_paused = False
                case Opened(evidence):
                    self._down.add(evidence.dependency)
                case Closed(dependency):
                    self._down.discard(dependency)

    def restarted(self) -> None:
        """A new process knows nothing of what the old one had decided."""
        self._is_paused = False
        self._down.clear()


class Quiet(Report):
    """Logs nothing: tells the ledger what the state machines decide. What becomes of each message is counted by the line."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def controlled(self, source: str, changes: Sequence[Change], now: float) -> None:
        self._ledger.decided(source, changes, now)

    def failed(self, event: Event, letter_id: str | None = None) -> None:
        """It would be a line in the log."""

    def released(self, source: str, count: int, *, interrupted: bool) -> None:
        """It would be a line in the log."""
