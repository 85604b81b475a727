"""Takes a message from the broker and back.

    fetch → guard → admit → run → judge → settle → report

`Consumer.turn` is that flow on one screen, in batches. What must be read off it: nothing is let go before its copy is
stored (settle), and nothing is reported before it is settled. The guard decodes inside the workers, right before
the handler, so that a body which breaks a decoder breaks no more than a handler could.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from unpoison.body.keys import key_reader
from unpoison.decide import attempts
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import PAUSES, OwnershipLost
from unpoison.flow.settling import GivenUp, NewSuspects, NotStarted, SettlementBuilder, Settler, Skipped
from unpoison.flow.suspects import LOOK_INTERVAL, ExclusiveRun, Suspects
from unpoison.flow.until_empty import IdleAgreement, UntilEmpty
from unpoison.model.message import UNTRIED, Counters, Delivery
from unpoison.port.broker import Broker, TellsNative
from unpoison.port.reading import Unreadable, failure_of, read_one, with_native
from unpoison.reporting.report import Report
from unpoison.workers.interface import Workers

if TYPE_CHECKING:
    from unpoison.worker.hooks import HookCaller

IDLE = 1.0
"""The longest sleep between two looks at the broker. It rings when something arrives; this is the net below."""

RETRY_BROKER = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries while the broker does not answer or cannot store; the last one repeats."""


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options, self._broker, self._workers, self._report, self._hooks = options, broker, workers, report, hooks
        self._ring = ring
        self._idle_agreement = IdleAgreement() if idle_agreement is None else idle_agreement
        self._until_empty = UntilEmpty(options.source, broker, report, clock)
        self._settler = Settler(
            options.source,
            broker,
            report,
            hooks,
            SettlementBuilder(options.limits, name, code_version, clock),
            wait=self._wait_for_broker,
            on_settled=self._until_empty.settled,
            on_ownership_lost=self._give_up_everything,
        )
        exclusive = ExclusiveRun() if exclusive is None else exclusive
        self._suspects = Suspects(options, broker, self._settler, exclusive, self._run_to_end, name)
        self._tell_native = broker.native if isinstance(broker, TellsNative) else None
        self._with_key = None if options.key_from is None else key_reader(options.key_from, options.source)
        self._stopping = threading.Event()
        self._grace_ends = float("inf")
        self._fetched: Sequence[Delivery] = ()

    def run(self, *, until_empty: bool = False) -> None:
        """Consume until stopped, or until nothing is ready, delayed or held by anyone.

        An unexpected fault settles nothing: what is in hand comes back as if this consumer had been killed, so that the
        ordinary rules find and give up the message that causes the fault at every start.
        """
        self._suspects.join(self._ring)
        try:
            self._consume(until_empty=until_empty)
        except Exception as error:
            self._vanish(error)
            raise
        finally:
            self._suspects.leave()

    def _consume(self, *, until_empty: bool) -> None:
        while not self._stopping.is_set():
            is_busy = self.turn()
            if self._run_suspect(is_busy=is_busy) or is_busy:
                self._idle_agreement.moved()
                self._until_empty.goes_on()
                continue
            if until_empty and self._idle_agreement.agreed(self, self._ring, self._is_empty):
                break
            self._workers.wait(LOOK_INTERVAL if self._suspects.is_asking else IDLE)
        self._drain()

    def stop(self, grace: float) -> None:
        """Finish what runs, for at most so long, and hand the rest back uncounted. Calling it again shortens the grace."""
        self._grace_ends = time.monotonic() + grace
        self._stopping.set()
        self._ring()

    def turn(self) -> bool:
        """One round of the flow. True if there was anything to do."""
        deliveries = self._fetched = self._fetch()
        runnable, fresh, not_started = self._admit(deliveries)
        self._workers.start(runnable, fresh)  # guard and run, in the workers; never raises, however badly it ends
        self._settler.settle_unstarted(not_started)
        results = self._workers.ended()
        self._settler.settle(results)  # judge, settle, report
        self._settler.release(self._workers.surplus())
        if not self._workers.running():
            self._suspects.went_idle()
        return bool(deliveries or results)

    def _fetch(self) -> Sequence[Delivery]:
        room = self._workers.room()
        if room == 0 or not self._suspects.may_start_others():
            return ()
        try:
            self._suspects.check()
            deliveries = self._broker.fetch(self._options.source, room)
        except OwnershipLost as error:
            self._give_up_everything(error)
            return ()
        except PAUSES as error:
            self._report.paused(self._options.source, error)
            self._stopping.wait(RETRY_BROKER[-1])
            return ()
        self._report.resumed(self._options.source)
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
            return deliveries, (), not_started
        runnable: list[Delivery] = []
        fresh: list[Delivery] = []
        suspects: list[Delivery] = []
        for delivery in deliveries:
            if isinstance(delivery, Unreadable):
                not_started.append(GivenUp([delivery], delivery.failure))
                continue
            match read_one(delivery.counters, self._admission, lambda _, error: attempts.GiveUp(failure_of(error))):
                case attempts.Run():
                    runnable.append(delivery)
                case attempts.RunFresh():
                    fresh.append(delivery)
                case attempts.SetAside():
                    suspects.append(delivery)
                case attempts.GiveUp(failure):
                    not_started.append(GivenUp([delivery], failure))
        return runnable, fresh, [*not_started, NewSuspects(suspects)] if suspects else not_started

    def _admission(self, counters: Counters) -> attempts.Admission:
        return attempts.admit(counters, self._options.limits)

    def _run_suspect(self, *, is_busy: bool) -> bool:
        """True if a message was run alone."""
        if self._stopping.is_set():
            return False
        try:
            return self._suspects.run_one(is_busy=is_busy)
        except OwnershipLost as error:
            self._give_up_everything(error)
            return False

    def _run_to_end(self, suspect: Delivery) -> None:
        """Run a suspect alone. Raises OwnershipLost if others have it by now: nothing is fetched meanwhile, so nothing else
        would notice before it ends."""
        if self._options.takes_delivery:
            suspect = with_native(suspect, self._tell_native)
        self._workers.start((), [suspect])
        self._finish_running(suspect)

    def _finish_running(self, alone: Delivery | None = None) -> None:
        """Settle what ends, until nothing runs any more or a stop has used up its grace."""
        while self._workers.running() and time.monotonic() < self._grace_ends:
            results = self._workers.ended()
            self._settler.settle(results)
            if not results:
                self._workers.wait(min(IDLE, max(0.0, self._grace_ends - time.monotonic())))
                if alone is not None and self._workers.running():
                    with suppress(*PAUSES):  # reported once it is to be settled
                        self._broker.extend([alone])

    def _wait_for_broker(self, tries: int) -> bool:
        """Wait before the next try; False once a stop has used up its grace."""
        pause = RETRY_BROKER[min(tries, len(RETRY_BROKER) - 1)]
        if self._stopping.is_set():
            time.sleep(min(pause, RETRY_BROKER[0]))
        else:
            self._stopping.wait(pause)
        return time.monotonic() < self._grace_ends

    def _give_up_everything(self, error: OwnershipLost) -> None:
        """Another consumer runs the messages by now: end them here, and drop what came of them."""
        self._report.ownership_lost(self._options.source, error)
        self._workers.interrupt()

    def _is_empty(self) -> bool:
        return self._until_empty.is_empty(self._workers.running())

    def _drain(self) -> None:
        """Hand back what was not started, settle what ends within the grace, then cut off the rest. None is charged."""
        self._settler.release(self._workers.take_back())
        self._finish_running()
        if self._workers.running():
            cut = self._workers.interrupt()
            self._settler.settle([ended for ended in cut.ended if ended.deliveries])
            self._settler.release(cut.unstarted, cut.running)
        self._workers.close()
        self._hooks.close()
        if self._workers.running():
            # Threads cannot be killed. The broker stays open, so that no other consumer starts what may still be running here.
            self._report.left_running(self._options.source, self._workers.running())
        else:
            self._broker.close()

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
