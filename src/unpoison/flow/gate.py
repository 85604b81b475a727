"""Lets the messages of one source start as its control allows, and pauses the source when it says so.

The control (`control/source.py`) decides; it knows neither broker nor workers. The gate carries out what it decides: it hands
back what was read ahead when the source is paused, holds messages back while a dependency throttles, and has changes logged.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from unpoison.control.changes import Change, Slowed
from unpoison.control.source import SourceControl
from unpoison.errors import PAUSES
from unpoison.flow.retention import Retention
from unpoison.flow.settling import Settler, Waiting
from unpoison.model.message import Delivery
from unpoison.port.broker import Broker, ReadsAhead
from unpoison.reporting.consumer_state import ConsumerState
from unpoison.reporting.report import Report
from unpoison.workers.interface import Workers

if TYPE_CHECKING:
    from unpoison.flow.store_link import StoreLink


class Gate:
    """Between the broker and the workers of one source."""

    def __init__(
        self,
        source: str,
        control: SourceControl,
        broker: Broker,
        workers: Workers,
        settler: Settler,
        report: Report,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        link: "StoreLink | None" = None,
    ) -> None:
        self._source, self._control, self._broker, self._workers = source, control, broker, workers
        self._settler, self._report, self._monotonic, self._link = settler, report, monotonic, link
        self._retention = Retention(source, broker)
        self._is_paused = False
        self._held: Sequence[Delivery] = ()
        """Fetched, and taken back from the workers: they wait here while a dependency throttles, which is a minute or so."""

    def follow(self) -> None:
        """Carry out what the control and the fleet have decided since this was last called."""
        now = self._monotonic()
        self._control.expire(now)
        if (expiring := self._retention.look(self._control.paused_so_far(now), now)) is not None:
            self._control.changes.append(expiring)
        changes = self.tell_changes()
        if any(isinstance(change, Slowed) for change in changes):
            self._held = [*self._held, *self._take_back()]
        if self._control.is_paused != self._is_paused:
            self._is_paused = not self._is_paused
            self._pause() if self._is_paused else self._resume()

    def tell_changes(self) -> Sequence[Change]:
        """Have the log and the fleet hear of what has changed, and hear from the fleet."""
        if self._link is not None:
            self._link.sync(self._control)
        changes = list(self._control.changes)
        if changes:
            self._control.changes.clear()
            self._report.controlled(self._source, changes, self._monotonic())
        return changes

    def room(self) -> int:
        """How many messages may be started now."""
        room, allowed = self._workers.room(), self._control.room(self._monotonic())
        return room if allowed is None else min(room, allowed)

    def may_start(self) -> bool:
        """Whether the control lets anything start now, as far as there is a free worker."""
        return self._control.room(self._monotonic()) != 0

    def take_held(self, room: int) -> Sequence[Delivery]:
        """Those that were held back go first."""
        taken, self._held = self._held[:room], self._held[room:]
        return taken

    def fetched(self, asked: int, deliveries: Sequence[Delivery]) -> None:
        now = self._monotonic()
        self._control.fetched(asked, len(deliveries), now)
        self._retention.fetched(deliveries, now)

    def started_first(self, deliveries: Sequence[Delivery]) -> None:
        """Messages that were never tried start now."""
        self._control.started(deliveries, len(deliveries), self._monotonic())

    def started_alone(self, suspect: Delivery) -> None:
        self._control.started([suspect], 0, self._monotonic())

    def admit(
        self, runnable: Sequence[Delivery], fresh: Sequence[Delivery]
    ) -> tuple[Sequence[Delivery], Sequence[Delivery], Sequence[Waiting]]:
        """Those that may start, and those that must wait because of what they need or because too many are retried."""
        runnable, put_off = self._control.admit(runnable, self._monotonic())
        fresh, others = self._control.admit(fresh, self._monotonic())
        waiting = [Waiting([delivery], after, waits_for) for delivery, after, waits_for in (*put_off, *others)]
        return runnable, fresh, waiting

    def next_look_in(self) -> float:
        """Seconds until more may start than now."""
        return self._control.next_look_in(self._monotonic())

    def running(self) -> int:
        """How many messages are in hand."""
        return self._workers.running() + len(self._held)

    def state(self, now: float) -> ConsumerState:
        """How things are. Any thread may ask."""
        control, circuits = self._control, self._control.circuits
        settling = sum(len(batch.deliveries) for batch in self._settler.in_hand)
        return ConsumerState(
            in_flight=self.running() + settling,
            pauses=control.pauses(),
            circuits={} if circuits is None else circuits.states(),
            budget_left=control.budget_left(now),
            put_off=control.put_off_by_budget,
            is_throttled=control.is_throttled,
            is_dlq_writable=self._settler.is_dlq_writable,
            is_store_up=None if self._link is None else self._link.is_up,
            retention_used=self._retention.used,
        )

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Hand these back, which were not started."""
        if deliveries:
            self._control.taken_back(deliveries, self._monotonic())
            self._settler.release(deliveries)

    def take_back_all(self) -> Sequence[Delivery]:
        """What was not started, and will not be."""
        held, self._held = self._held, ()
        return [*held, *self._take_back()]

    def dropped(self) -> None:
        """Others have everything that this consumer held."""
        self._held = ()
        self._control.dropped(self._monotonic())

    def _take_back(self) -> Sequence[Delivery]:
        taken = self._workers.take_back()
        self._control.taken_back(taken, self._monotonic())
        return taken

    def _pause(self) -> None:
        if isinstance(self._broker, ReadsAhead):
            with suppress(*PAUSES):  # it cannot be reached, so it reads nothing either; the next fetch reports it
                self._broker.pause(self._source)
        self._settler.release(self.take_back_all())  # after that: what a return would count against, a paused broker keeps

    def _resume(self) -> None:
        if isinstance(self._broker, ReadsAhead):
            with suppress(*PAUSES):
                self._broker.resume(self._source)
