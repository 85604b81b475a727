"""Takes a message from the broker and back.

    fetch → guard → admit → run → judge → settle → report

`Consumer.turn` is that flow on one screen, in batches. What must be read off it: nothing is let go before its copy is
stored (settle), and nothing is reported before it is settled. The guard decodes inside the workers, right before
the handler, so that a body which breaks a decoder breaks no more than a handler could.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from unpoison.body.guard import key_reader
from unpoison.control.source import SourceControl
from unpoison.decide import attempts
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import PAUSES, OwnershipLost
from unpoison.flow.counting import StartCounter
from unpoison.flow.ending import IdleAgreement, Stop, UntilEmpty
from unpoison.flow.gate import Gate
from unpoison.flow.settling import GivenUp, NewSuspects, NotStarted, SettlementBuilder, Settler, Skipped
from unpoison.flow.suspects import LOOK_INTERVAL, ExclusiveRun, Suspects
from unpoison.model.message import UNTRIED, Delivery
from unpoison.observing.health import LastTurn
from unpoison.port.broker import Broker, TellsNative
from unpoison.port.reading import Unreadable, failure_of, read_one, with_native
from unpoison.reporting.consumer_state import ConsumerState
from unpoison.reporting.numbers import SourceNumbers
from unpoison.reporting.report import Report
from unpoison.workers.interface import Workers

if TYPE_CHECKING:
    from unpoison.flow.store_link import StoreLink
    from unpoison.workers.hooks import HookCaller

IDLE = 1.0
"""The longest sleep between two looks at the broker. It rings when something arrives; this is the net below."""


class Consumer:
    """The loop around one source. It runs no user code itself; its workers do."""

    def __init__(
        self,
        options: ConsumerOptions,
        broker: Broker,
        workers: Workers,
        report: Report,
        hooks: "HookCaller",
        ring: Callable[[], None],
        *,
        exclusive: ExclusiveRun | None = None,
        idle_agreement: IdleAgreement | None = None,
        name: str = "",
        code_version: str | None = None,
        link: "StoreLink | None" = None,
        last_turn: LastTurn | None = None,
        numbers: SourceNumbers | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._broker, self._workers, self._report, self._hooks = options, broker, workers, report, hooks
        self._ring, self._stop, self._monotonic = ring, Stop(monotonic), monotonic
        self._last_turn = last_turn or LastTurn(monotonic)
        self._counter = StartCounter(numbers or SourceNumbers(), options.limits)
        control = SourceControl(options.control)
        self._until_empty = UntilEmpty(options.source, broker, report, clock, idle_agreement, ring)
        self._settler = Settler(
            options.source,
            broker,
            report,
            hooks,
            SettlementBuilder(options.limits, name, code_version, clock, monotonic, control),
            wait=self._wait_for_broker,
            on_settled=self._until_empty.settled,
            on_ownership_lost=self._give_up_everything,
        )
        self._gate = Gate(options.source, control, broker, workers, self._settler, report, monotonic=monotonic, link=link)
        self._suspects = Suspects(options, broker, self._settler, exclusive or ExclusiveRun(), self._start_alone, name, monotonic)
        self._suspects.join(ring)
        self._tell_native = broker.native if isinstance(broker, TellsNative) else None
        self._with_key = None if options.key_from is None else key_reader(options.key_from, options.source)
        self._is_draining = False
        self._fetched: Sequence[Delivery] = ()

    def run(self, *, until_empty: bool = False) -> None:
        """Consume until stopped, or until nothing is ready, delayed or held by anyone.

        An unexpected fault settles nothing: what is in hand comes back as if this consumer had been killed, so that the
        ordinary rules find and give up the message that causes the fault at every start.
        """
        try:
            while (pause := self.step(until_empty=until_empty)) is not None:
                self._last_turn.note()
                if pause > 0:
                    self._workers.wait(pause)
        except Exception as error:
            self._vanish(error)
            raise
        finally:
            self._suspects.leave()

    def step(self, *, until_empty: bool = False) -> float | None:
        """Do what can be done now. Returns how many seconds to wait before the next step, None once this consumer has ended."""
        if self._stop.is_asked():
            return self._drain()
        is_busy = self.turn()
        if self._start_suspect(is_busy=is_busy) or is_busy:
            self._until_empty.goes_on()
            return 0.0
        if until_empty and self._until_empty.is_over(self._gate.running()):
            return self._drain()
        return LOOK_INTERVAL if self._suspects.is_waiting() else min(IDLE, self._gate.next_look_in())

    def stop(self, grace: float) -> None:
        """Finish what runs, for at most so long, and hand the rest back uncounted. Calling it again shortens the grace."""
        self._stop.ask(grace)
        self._ring()

    def state(self) -> ConsumerState:
        """How this consumer is. Any thread may ask."""
        return self._gate.state(self._monotonic())

    def turn(self) -> bool:
        """One round of the flow. True if there was anything to do."""
        self._gate.follow()
        deliveries = self._fetched = self._fetch()
        runnable, fresh, not_started = self._admit(deliveries)
        self._workers.start(runnable, fresh)  # guard and run, in the workers; never raises, however badly it ends
        self._settler.settle_unstarted(not_started)
        results = self._counter.ended(self._workers.ended())
        self._settler.settle(results)  # judge, settle, report
        self._gate.release(self._workers.surplus())
        if not self._workers.running():
            self._suspects.went_idle()
        return bool(deliveries or results)

    def _fetch(self) -> Sequence[Delivery]:
        room = self._gate.room()
        if room == 0 or not self._suspects.may_start_others():
            return ()
        if held := self._gate.take_held(room):
            return held
        try:
            self._suspects.check()
            deliveries = self._broker.fetch(self._options.source, room)
        except OwnershipLost as error:
            self._give_up_everything(error)
            return ()
        except PAUSES as error:
            self._report.paused(self._options.source, error)
            self._stop.wait_for_broker()
            return ()
        self._report.resumed(self._options.source)
        self._gate.fetched(room, deliveries)
        return self._completed(deliveries)

    def _wait_for_broker(self, tries: int) -> bool:
        """Within a turn: it may last as long as the broker is away."""
        self._last_turn.note()
        return self._stop.wait_for_broker(tries)

    def _completed(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """With the native facts and the key that the handler is to find in them."""
        if self._options.takes_delivery:
            deliveries = [with_native(delivery, self._tell_native) for delivery in deliveries]
        return deliveries if self._with_key is None else [self._with_key(delivery) for delivery in deliveries]

    def _admit(self, deliveries: Sequence[Delivery]) -> tuple[Sequence[Delivery], Sequence[Delivery], Sequence[NotStarted]]:
        """Those that may start in batches, those that need a fresh worker, and those that are settled without a start."""
        not_started: list[NotStarted] = []
        if self._options.tombstones == "skip" and any(delivery.is_tombstone for delivery in deliveries):
            not_started.append(Skipped([delivery for delivery in deliveries if delivery.is_tombstone]))
            deliveries = [delivery for delivery in deliveries if not delivery.is_tombstone]
        if all(delivery.counters is UNTRIED for delivery in deliveries):
            self._gate.started_first(deliveries)
            return deliveries, (), not_started
        self._counter.fetched(deliveries)
        runnable: list[Delivery] = []
        fresh: list[Delivery] = []
        suspects: list[Delivery] = []
        admission = partial(attempts.admit, limits=self._options.limits)
        for delivery in deliveries:
            if isinstance(delivery, Unreadable):
                not_started.append(GivenUp([delivery], delivery.failure))
                continue
            match read_one(delivery.counters, admission, lambda _, error: attempts.GiveUp(failure_of(error))):
                case attempts.Run():
                    runnable.append(delivery)
                case attempts.RunFresh():
                    fresh.append(delivery)
                case attempts.SetAside():
                    suspects.append(delivery)
                case attempts.GiveUp(failure):
                    not_started.append(GivenUp([delivery], failure))
        started, started_fresh, waiting = self._gate.admit(runnable, fresh)
        self._counter.starting((*started, *started_fresh))
        not_started += waiting
        return started, started_fresh, [*not_started, NewSuspects(suspects)] if suspects else not_started

    def _start_suspect(self, *, is_busy: bool) -> bool:
        """True if a suspect was started or given up."""
        if self._stop.is_asked():
            return False
        try:
            return self._suspects.start_one(is_busy=is_busy, may_start=self._gate.may_start())
        except OwnershipLost as error:
            self._give_up_everything(error)
            return False

    def _start_alone(self, suspect: Delivery) -> None:
        self._counter.fetched([suspect])
        self._counter.starting([suspect])
        self._gate.started_alone(suspect)
        self._workers.start((), self._completed([suspect]))

    def _give_up_everything(self, error: OwnershipLost) -> None:
        """Another consumer runs the messages by now: end them here, and drop what came of them."""
        self._report.ownership_lost(self._options.source, error)
        self._counter.interrupted(self._workers.interrupt())
        self._gate.dropped()

    def _drain(self) -> float | None:
        """Hand back what was not started, settle what ends within the grace, then cut off the rest. None is charged."""
        if not self._is_draining:
            self._is_draining = True
            self._settler.release(self._gate.take_back_all())
        self._settler.settle(self._counter.ended(self._workers.ended()))
        if self._workers.running() and (grace := self._stop.grace()) > 0:
            try:
                self._suspects.keep()
            except OwnershipLost as error:
                self._give_up_everything(error)
            return min(IDLE, grace)
        if self._workers.running():
            cut = self._workers.interrupt()
            self._counter.interrupted(cut)
            self._settler.settle([ended for ended in cut.ended if ended.deliveries])
            self._settler.release(cut.unstarted, cut.running)
        self._gate.tell_changes()
        self._workers.close()
        self._hooks.close()
        if self._workers.running():
            # Threads cannot be killed. The broker stays open, so that no other consumer starts what may still be running here.
            self._report.left_running(self._options.source, self._workers.running())
        else:
            self._broker.close()
        return None

    def _vanish(self, error: Exception) -> None:
        """Leave everything unsettled, as a kill does. While a worker may still run a message, no other consumer gets it."""
        settling = [delivery.id for batch in self._settler.in_hand for delivery in batch.deliveries]
        self._report.broke(self._options.source, settling or [delivery.id for delivery in self._fetched], error)
        with suppress(Exception):  # what is broken may be broken here too; the end of the process does the same
            self._workers.interrupt()
            self._workers.close()
            self._hooks.close()
            if not self._workers.running():
                self._broker.close()
