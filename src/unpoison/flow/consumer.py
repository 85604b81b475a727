"""What happens to a message, from the broker and back?

    fetch → guard → admit → run → judge → settle → report

`Consumer.turn` is that flow on one screen, in batches. What must be read off it: nothing is let go before its copy is
stored (settle), and nothing is reported before it is settled. The guard decodes inside the workers, right before
the handler, so that a body which breaks a decoder breaks no more than a handler could.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from unpoison.body.keys import key_reader
from unpoison.decide import attempts
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import PAUSES, OwnershipLost
from unpoison.flow.exclusive_run import Alone
from unpoison.flow.settlement_builder import Judged, SettlementBuilder
from unpoison.flow.until_empty import IdleAgreement, UntilEmpty
from unpoison.model.message import UNTRIED, Counters, Delivery
from unpoison.model.verdict import DeadLetter
from unpoison.port.broker import Broker, Settlement, TellsNative
from unpoison.port.reading import Unreadable, failure_of, read_one, with_native
from unpoison.reporting.report import Report
from unpoison.workers.interface import Ended, Workers

if TYPE_CHECKING:
    from unpoison.worker.hooks import HookCaller

IDLE = 1.0
"""The longest sleep between two looks at the broker; it rings when something arrives, this is only the net below."""

RETRY_BROKER = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries while the broker does not answer or cannot store; the last one repeats."""

LOOK_FOR_SUSPECTS = 0.05
"""Seconds between two looks for a message that must run alone."""

ASK_FOR = 1.0
"""Seconds that such a message waits, at first, for the others to end; nothing starts in that time."""


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
        alone: Alone | None = None,
        idle_agreement: IdleAgreement | None = None,
        name: str = "",
        code_version: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options, self._broker, self._workers, self._report, self._hooks = options, broker, workers, report, hooks
        self._ring, self._name = ring, name
        self._alone = Alone() if alone is None else alone
        self._idle_agreement = IdleAgreement() if idle_agreement is None else idle_agreement
        self._judge = SettlementBuilder(options.limits, name, code_version, clock)
        self._until_empty = UntilEmpty(options.source, broker, report, clock)
        self._tell_native = broker.native if isinstance(broker, TellsNative) else None
        self._with_key = None if options.key_from is None else key_reader(options.key_from, options.source)
        self._stopping = threading.Event()
        self._grace_ends = float("inf")
        self._suspects_after = 0.0
        self._fetched: Sequence[Delivery] = ()
        self._settling: Sequence[Ended] = ()
        self._is_asking = self._is_blind = False
        """Blind: it could not be seen whether a suspect waits. While that stays so the source is paused: it would never start."""
        self._asked_at, self._ask_for, self._asks_after = 0.0, ASK_FOR, 0.0

    def run(self, *, until_empty: bool = False) -> None:
        """Consume until stopped, or until nothing is ready, delayed or held by anyone.

        A fault that nobody expected settles nothing: what is in hand comes back as if this consumer had been killed, so that the
        message which causes the fault at every start is found and given up by the ordinary rules.
        """
        self._alone.join(self, self._ring)
        try:
            self._consume(until_empty=until_empty)
        except Exception as error:
            self._vanish(error)
            raise
        finally:
            self._alone.leave(self)

    def _consume(self, *, until_empty: bool) -> None:
        while not self._stopping.is_set():
            is_busy = self.turn()
            if self._run_suspect(is_busy) or is_busy:
                self._idle_agreement.moved()
                self._until_empty.goes_on()
                continue
            if until_empty and self._idle_agreement.agreed(self, self._ring, self._is_empty):
                break
            self._workers.wait(LOOK_FOR_SUSPECTS if self._is_asking else IDLE)
        self._drain()

    def stop(self, grace: float) -> None:
        """Finish what runs, for at most so long, and hand the rest back uncounted. Calling it again shortens the grace."""
        self._grace_ends = time.monotonic() + grace
        self._stopping.set()
        self._ring()

    def turn(self) -> bool:
        """One round of the flow. True if there was anything to do."""
        deliveries = self._fetched = self._fetch()
        runnable, fresh, refused = self._admit(deliveries)
        self._workers.start(runnable, fresh)  # guard and run, in the workers; never raises, however badly it ends
        self._settle_unstarted(refused)
        ended = self._workers.ended()
        self._settle_and_report(ended)
        self._release(self._workers.surplus())
        if not self._workers.running():
            self._alone.is_idle(self)
        return bool(deliveries or ended)

    def _fetch(self) -> Sequence[Delivery]:
        room = self._workers.room()
        if room == 0 or not self._alone.enter(self):
            return ()
        try:
            if self._is_blind:
                self._broker.has_suspect(self._options.source)
                self._is_blind = False
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

    def _admit(self, deliveries: Sequence[Delivery]) -> tuple[Sequence[Delivery], Sequence[Delivery], Sequence[Ended]]:
        """Those that may start in batches, those that need a fresh worker, and those that are judged without starting."""
        if self._options.tombstones == "skip" and any(delivery.is_tombstone for delivery in deliveries):
            skipped = [delivery for delivery in deliveries if delivery.is_tombstone]
            self._report.skips_tombstones(self._options.source)
            runnable, fresh, refused = self._admitted([delivery for delivery in deliveries if not delivery.is_tombstone])
            return runnable, fresh, [Ended(skipped), *refused]
        return self._admitted(deliveries)

    def _admitted(self, deliveries: Sequence[Delivery]) -> tuple[Sequence[Delivery], Sequence[Delivery], Sequence[Ended]]:
        if all(delivery.counters is UNTRIED for delivery in deliveries):
            return deliveries, (), ()
        runnable: list[Delivery] = []
        fresh: list[Delivery] = []
        aside: list[Delivery] = []
        refused: list[Ended] = []
        for delivery in deliveries:
            if isinstance(delivery, Unreadable):
                refused.append(Ended([delivery], {0: delivery.failure}))
                continue
            match read_one(delivery.counters, self._admission, lambda _, error: attempts.GiveUp(failure_of(error))):
                case attempts.Run():
                    runnable.append(delivery)
                case attempts.RunFresh():
                    fresh.append(delivery)
                case attempts.SetAside():
                    aside.append(delivery)
                case attempts.GiveUp(failure):
                    refused.append(Ended([delivery], {0: failure}))
        return runnable, fresh, [*refused, Ended(aside, aside=True)] if aside else refused

    def _admission(self, counters: Counters) -> attempts.Admission:
        return attempts.admit(counters, self._options.limits)

    def _settle_and_report(self, ended: Sequence[Ended]) -> None:
        if ended and (judged := self._judge_and_settle(ended)):
            self._tell(judged)

    def _judge_and_settle(self, ended: Sequence[Ended]) -> Judged | None:
        self._settling = ended
        judged = self._judge(ended)
        letter_ids = self._settle(judged.settlement)  # copies first, letting go last: a crash here repeats, it never loses
        self._settling = ()
        return None if letter_ids is None else replace(judged, letter_ids=letter_ids)

    def _settle_unstarted(self, refused: Sequence[Ended]) -> None:
        """One that cannot be set aside or given up, by a fault of our own, would end every consumer that comes to this point.
        So it becomes a dead letter of which as little is asked as possible."""
        if not refused:
            return
        try:
            judged = self._judge_and_settle(refused)
        except Exception as error:
            if len(refused) == len(refused[0].deliveries) == 1:
                self._settle_barely(refused[0], error)
                return
            for one in [one for batch in refused for one in batch.one_by_one()]:
                self._settle_unstarted([one])
        else:
            if judged:
                self._tell(judged)

    def _settle_barely(self, one: Ended, error: Exception) -> None:
        (delivery,) = one.deliveries
        failure = one.failures.get(0) or failure_of(error, "setting it aside")
        if self._settle(self._judge.given_up(delivery, failure)) is not None:
            self._report.given_up(delivery, failure, error)
        self._settling = ()

    def _settle(self, settlement: Settlement) -> Sequence[str | None] | None:
        """The ids of the dead letters once the broker has confirmed it, None if it was not settled. While it cannot store, this
        source stands still: nothing is dropped."""
        tries = 0
        while True:
            try:
                letter_ids = self._broker.settle(settlement)
            except OwnershipLost as error:
                self._give_up_everything(error)
                return None
            except PAUSES as error:
                self._report.paused(self._options.source, error)
                if not self._wait_for_broker(tries):
                    return None
                tries += 1
            else:
                self._report.resumed(self._options.source)
                self._until_empty.settled(settlement)
                return letter_ids or ()

    def _tell(self, judged: Judged) -> None:
        self._report.done(self._options.source, judged.done)
        letter_ids = iter(judged.letter_ids)
        for event in judged.events:
            is_dead = isinstance(event.ruling.verdict, DeadLetter)
            self._report.failed(event, next(letter_ids, None) if is_dead else None)
            self._hooks.call(event)

    def _wait_for_broker(self, tries: int) -> bool:
        """Wait before the next try; False once a stop has used up its grace."""
        pause = RETRY_BROKER[min(tries, len(RETRY_BROKER) - 1)]
        if self._stopping.is_set():
            time.sleep(min(pause, RETRY_BROKER[0]))
        else:
            self._stopping.wait(pause)
        return time.monotonic() < self._grace_ends

    def _give_up_everything(self, error: OwnershipLost) -> None:
        """The messages run elsewhere by now: end them here, and drop what came of them."""
        self._report.ownership_lost(self._options.source, error)
        self._workers.interrupt()

    def _run_suspect(self, is_busy: bool) -> bool:
        """Run one message that must run alone, if there is one and this process can be had to itself. True if one was run.

        While there is other work, suspects get at most half of the time.
        """
        now = time.monotonic()
        if (is_busy and now < self._suspects_after) or now < self._asks_after or self._stopping.is_set():
            return False
        self._suspects_after = now + LOOK_FOR_SUSPECTS
        with suppress(*PAUSES):  # reported by the next fetch: see `_is_blind`
            if not self._broker.has_suspect(self._options.source):
                if self._is_asking:
                    self._stop_asking()
                return False
            if not self._is_asking:
                self._is_asking, self._asked_at = True, now
            if not self._alone.ask(self):
                self._lose_patience(now)
                return False
            try:
                return self._run_alone()
            except OwnershipLost as error:
                self._give_up_everything(error)
            finally:
                self._suspects_after = time.monotonic() + (time.monotonic() - self._asked_at)
                self._ask_for = ASK_FOR
                self._stop_asking()
        self._is_blind = True
        if self._is_asking:  # the broker went away meanwhile: the other consumers do not wait for it
            self._stop_asking()
        return False

    def _lose_patience(self, now: float) -> None:
        """What runs now may run for long, or for ever. Then everybody goes on for a while, and after that it is waited longer."""
        if now - self._asked_at > self._ask_for:
            self._asks_after = now + self._ask_for
            self._ask_for *= 2
            self._stop_asking()

    def _stop_asking(self) -> None:
        self._is_asking = False
        self._alone.done(self)

    def _run_alone(self) -> bool:
        """Take a suspect and run it to its end, with nothing beside it. False if there was none to be had."""
        suspect = self._broker.take_suspect(self._options.source, self._name)  # from here on its start is on record
        if suspect is None:
            return False
        if isinstance(suspect, Unreadable):
            self._settle_unstarted([Ended([suspect], {0: suspect.failure})])
            return True
        if suspect.is_tombstone and self._options.tombstones == "skip":
            self._report.skips_tombstones(self._options.source)
            self._settle_unstarted([Ended([suspect])])
            return True
        admission = attempts.admit_alone(suspect.counters, self._options.limits)
        if isinstance(admission, attempts.GiveUp):
            self._settle_unstarted([Ended([suspect], {0: admission.failure})])
            return True
        if self._options.takes_delivery:
            suspect = with_native(suspect, self._tell_native)
        self._workers.start((), [suspect])
        self._finish_running(suspect)
        return True

    def _finish_running(self, alone: Delivery | None = None) -> None:
        """Settle what ends, until nothing runs any more or a stop has used up its grace. Raises OwnershipLost if the one that
        runs alone is somebody else's by now: nothing is fetched meanwhile, so nobody else would find out before it ends."""
        while self._workers.running() and time.monotonic() < self._grace_ends:
            ended = self._workers.ended()
            self._settle_and_report(ended)
            if not ended:
                self._workers.wait(min(IDLE, max(0.0, self._grace_ends - time.monotonic())))
                if alone is not None and self._workers.running():
                    with suppress(*PAUSES):  # said once it is to be settled
                        self._broker.extend([alone])

    def _is_empty(self) -> bool:
        return self._until_empty.is_empty(self._workers.running())

    def _drain(self) -> None:
        """Hand back what was not started, settle what ends within the grace, then cut off the rest. Nobody is charged."""
        self._release(self._workers.take_back())
        self._finish_running()
        if self._workers.running():
            cut = self._workers.interrupt()
            self._settle_and_report([ended for ended in cut.ended if ended.deliveries])
            self._release(cut.unstarted, cut.running)
        self._workers.close()
        self._hooks.close()
        if self._workers.running():
            # Threads cannot be killed. The broker stays open, so that nobody else starts what may still be running here.
            self._report.left_running(self._options.source, self._workers.running())
        else:
            self._broker.close()

    def _vanish(self, error: Exception) -> None:
        """Leave everything unsettled, as a kill does. While a worker may still run something, nobody else gets it."""
        settling = [delivery.id for batch in self._settling for delivery in batch.deliveries]
        self._report.broke(self._options.source, settling or [delivery.id for delivery in self._fetched], error)
        with suppress(Exception):  # what is broken may be broken here too; the end of the process does the same
            self._workers.interrupt()
            self._workers.close()
            self._hooks.close()
            if not self._workers.running():
                self._broker.close()

    def _release(self, unstarted: Sequence[Delivery], cut_off: Sequence[Delivery] = ()) -> None:
        if not (unstarted or cut_off):
            return
        judged = self._judge.released(unstarted, cut_off)
        letter_ids = self._settle(judged.settlement)
        if letter_ids is not None:
            self._report.released(self._options.source, len(unstarted), interrupted=False)
            self._report.released(self._options.source, len(cut_off) - len(judged.events), interrupted=True)
            self._tell(replace(judged, letter_ids=letter_ids))
