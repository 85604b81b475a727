"""How do isolated workers serve one source?

`IsolatedWorkers` keeps the wanted number of worker processes and a spare one, hands them batches that fit their speed, and
collects how they ended. When a worker dies, the message that was running is charged and the rest of its batch goes on.
"""

import logging
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unpoison.decide.options import Settings
from unpoison.errors import UnpoisonError
from unpoison.model.message import Delivery
from unpoison.worker import wire
from unpoison.workers.bell import Bell
from unpoison.workers.damage import Trust
from unpoison.workers.deaths import Death, Deaths, judge_death
from unpoison.workers.dispatching import Dispatch, Pace
from unpoison.workers.interface import Ended, Interrupted
from unpoison.workers.pooled_worker import Seat
from unpoison.workers.start_backoff import Starting
from unpoison.workers.watch import Watch

if TYPE_CHECKING:
    from unpoison.workers.template_client import Template

log = logging.getLogger("unpoison")

HELD_BYTES = 64 * 1024 * 1024
"""No more is fetched while this many bytes are in hand: a limit by count alone lets large bodies fill the memory."""

LEAVE_WITHIN = 3.0
"""Seconds a retired worker gets to run its on_worker_stop."""


class IsolatedWorkers:
    """The worker processes of one source."""

    def __init__(
        self,
        consumer: wire.Consumer,
        settings: Settings,
        template: "Template",
        inherited_fds: Callable[[], Sequence[int]],
        bell: Bell,
        deaths: Deaths,
    ) -> None:
        self._consumer, self._settings, self._template, self._ties, self._deaths = (
            consumer,
            settings,
            template,
            inherited_fds,
            deaths,
        )
        self._bell = bell
        self._wanted = consumer.options.processes
        self._seats: list[Seat] = []
        self._leaving: list[Seat] = []
        self._unjudged: list[Death] = []
        self._results: list[Ended] = []
        self._starting = Starting(consumer.options, settings.start_timeout)
        self._is_closing = False
        self._pace = Pace(consumer.options)
        self._watch = Watch(consumer.options)
        self._waiting = Dispatch(consumer.options, self._pace, self._watch, settings.recycle_messages)
        self._trust = Trust(consumer.options.source, consumer.options.name)
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell.fileno(), selectors.EVENT_READ)
        self._fill_seats()

    def room(self) -> int:
        if self._weight() > HELD_BYTES or self._is_stuck():
            return 0
        full = self._wanted * self._pace.per_worker()
        # What waits for a fresh worker keeps nothing else from being fetched, within limits.
        return max(0, full - self.running() + min(len(self._waiting.fresh), full))

    def _weight(self) -> int:
        """Bytes in hand."""
        return sum(seat.book.weight() for seat in self._seats) + self._waiting.weight()

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self._waiting.queue.extend(deliveries)
        self._waiting.fresh.extend(fresh)
        self._waiting.hand_out(self._seats)

    def ended(self) -> Sequence[Ended]:
        if not self._results:
            self._attend(0.0)
        results, self._results = self._results, []
        return results

    def running(self) -> int:
        held = sum(seat.book.held() for seat in self._seats)
        return held + len(self._waiting) + len(self._unjudged) + sum(len(e.deliveries) for e in self._results)

    def wait(self, timeout: float) -> None:
        if not self._results:
            self._attend(min(timeout, self._watch.next_look(self._seats), self._deaths.next_judgement(self._unjudged)))
            self._bell.silence()  # here alone: whoever waited looks for new messages next

    def surplus(self) -> Sequence[Delivery]:
        if not self._waiting.queue or not self._is_stuck():
            return ()
        surplus, self._waiting.queue = self._waiting.queue, []
        return surplus

    def take_back(self) -> Sequence[Delivery]:
        taken = self._waiting.take_all()
        for seat in self._seats:
            if seat.book.held() > len(seat.book.running()):
                taken += self._tail_of(seat)
        return taken

    def interrupt(self) -> Interrupted:
        """Kill every worker; what had ended by then still counts, and nobody is charged for what had not."""
        unstarted = self._waiting.take_all()
        running = [one for death in self._unjudged for one in death.remains.running]
        for seat in [*self._seats, *self._leaving]:
            seat.process.kill()
        for seat in list(self._seats):
            self._hear_last_words(seat)
            remains = seat.laid_out()
            self._results.append(replace(remains.ended, in_used_worker=not seat.is_solo))
            unstarted += [*remains.unstarted, *self._waiting.take_all()]
            running += remains.running
            self._dismiss(seat)
        self._unjudged.clear()
        results, self._results = self._results, []
        return Interrupted(results, unstarted, [one.delivery for one in running])

    def close(self) -> None:
        self._is_closing = True
        for seat in list(self._seats):
            self._retire(seat)
        until = time.monotonic() + LEAVE_WITHIN
        while self._leaving and time.monotonic() < until:
            self._attend(min(0.05, until - time.monotonic()))
            self._bell.silence()
        for seat in list(self._leaving):
            seat.laid_out()
            self._dismiss(seat)
        self._selector.close()

    def _attend(self, timeout: float) -> None:
        """Listen to the workers for so long, see to those that died or take too long, and hand out what waits."""
        stirring = {key.data for key, _ in self._selector.select(max(0.0, timeout))}
        for seat in [seat for seat in self._seats if seat in stirring]:
            self._listen(seat)
        for seat in [seat for seat in self._seats if seat in stirring or seat.process.hung_up]:
            if seat.process.hung_up and not seat.process.is_gone():
                self._give_no_more(seat)
            if seat.is_over():
                self._bury(seat)
        for seat in [seat for seat in self._leaving if seat.is_over()]:
            self._bury(seat)
        for seat in self._starting.hanging(self._seats):
            self._bury(seat)
        for seat in [seat for seat in self._seats if seat.retiring and seat.ready and not seat.book.held()]:
            self._retire(seat)
        self._judge_deaths()
        if self._watch.is_due():
            self._look_at_clocks()
        self._waiting.hand_out(self._seats)  # what a dead worker left goes to the spare one; only then is a new spare made
        self._fill_seats()

    def _look_at_clocks(self) -> None:
        for seat in self._watch.overdue(self._seats):
            self._end_overdue(seat)
        for seat in self._watch.slow(self._seats):
            self._waiting.queue[:0] = self._tail_of(seat)  # a message that takes long must not hold those behind it

    def _listen(self, seat: Seat) -> None:
        for said in seat.process.said():
            match said:
                case wire.Ready():
                    seat.ready = True
                    self._starting.worked()
                    self._trust.prepare(seat)
                case wire.Broken(text):
                    seat.problem = text
                case wire.Damaged():
                    self._trust.damaged(seat, said, self._seats)
                case wire.Ended() | wire.Failed():
                    try:
                        ended = self._heard(seat, said)
                    except ValueError as lie:
                        log.warning(
                            "Worker %d of %r cannot be believed (%s) and is ended.",
                            seat.process.pid,
                            self._consumer.options.name,
                            lie,
                            extra={"event": "worker-not-believed", "source": self._source},
                        )
                        seat.process.kill()
                        return
                    if ended is not None:
                        self._took(seat, ended, said)

    def _heard(self, seat: Seat, said: wire.Ended | wire.Failed) -> Ended | None:
        if isinstance(said, wire.Failed):
            # Evidence against the process: whatever else the worker has in hand ends in it, and nothing more begins.
            seat.retiring = seat.retiring or said.failure.blames_process
        elif said.leaving:
            seat.retiring = True
            self._waiting.queue[:0] = seat.book.take_back()
        ended = seat.book.heard(said)
        return None if ended is None else replace(ended, in_used_worker=not seat.is_solo)

    def _took(self, seat: Seat, ended: Ended, said: wire.Ended | wire.Failed) -> None:
        self._results.append(ended)
        if not self._trust.ended(seat, ended) and not seat.retiring:
            seat.retiring = True
            self._waiting.queue[:0] = self._tail_of(seat)
        seat.uses += len(ended.deliveries)
        self._pace.measured(seat, len(ended.deliveries))
        limit, memory = self._settings.recycle_messages, self._settings.recycle_memory
        grown = memory is not None and isinstance(said, wire.Ended) and said.peak > memory
        if seat.is_solo or grown or (limit is not None and seat.uses >= limit):
            seat.retiring = True
        if seat.retiring and not seat.book.held() and seat in self._seats:  # it may be leaving already
            self._retire(seat)

    def _bury(self, seat: Seat) -> None:
        """The worker is gone or going: make sure, hear its last words, and see what it leaves."""
        self._hear_last_words(seat)
        remains = seat.laid_out()
        if seat in self._leaving:
            self._dismiss(seat)
            return
        if not seat.ready:
            self._starting.failed(seat)
        self._put_back(seat, remains.unstarted)
        if remains.ended.deliveries:
            self._results.append(replace(remains.ended, in_used_worker=not seat.is_solo))
        if remains.running or not remains.is_sound:
            self._unjudged.append(self._deaths.note(seat, remains))
        self._dismiss(seat)

    def _hear_last_words(self, seat: Seat) -> None:
        """What a worker that is gone had still said: above all that it was leaving, and why."""
        if seat.end():
            self._listen(seat)

    def _put_back(self, seat: Seat, unstarted: Sequence[Delivery]) -> None:
        if seat.is_solo:
            self._waiting.fresh.extendleft(unstarted)  # one at most, and it still needs a new worker
        else:
            self._waiting.queue[:0] = unstarted

    def _give_no_more(self, seat: Seat) -> None:
        """A handler closed the worker's socket. What runs in it may still end, its marks will tell; nothing more starts there."""
        seat.retiring = True
        if seat.process.sock in self._selector.get_map():
            self._selector.unregister(seat.process.sock)
        self._put_back(seat, self._tail_of(seat))

    def _judge_deaths(self) -> None:
        """Charge the culprits; where several workers died at once, nobody can be blamed yet."""
        for death in list(self._unjudged):
            if self._deaths.is_settled(death):
                self._unjudged.remove(death)
                self._results.append(judge_death(death, self._source, together=self._deaths.together(death)))

    def _end_overdue(self, seat: Seat) -> None:
        """The message in this worker is over its time limit: look twice, then end the worker for it."""
        late = self._watch.caught(seat)
        if late is None:
            return
        seat.process.kill()
        seat.late = late
        self._bury(seat)

    def _tail_of(self, seat: Seat) -> Sequence[Delivery]:
        try:
            if seat.process.stand_still():
                return seat.book.take_back()
            self._watch.could_not_stop(seat)
            return ()
        finally:
            seat.process.go_on()

    def _fill_seats(self) -> None:
        """As many workers as are wanted and one more that waits, unused, for whoever needs a fresh one. Those that run a
        single message, or are to leave, come on top: there is always one to take over."""
        while self._starting.is_due() and not self._is_closing:
            try:
                self._template.revive()
                if sum(1 for seat in self._seats if not (seat.is_solo or seat.retiring)) > self._wanted:
                    return
                process = self._template.worker(self._consumer, self._ties())
            except (UnpoisonError, OSError) as error:
                self._starting.impossible(error)
                return
            seat = Seat(process, self._consumer)
            self._seats.append(seat)
            self._selector.register(seat.process.sock, selectors.EVENT_READ, seat)
            self._selector.register(seat.process.pidfd, selectors.EVENT_READ, seat)

    def _is_stuck(self) -> bool:
        """Whether every worker is busy with a message that takes long, so that what waits here would wait as long."""
        return bool(self._seats) and sum(self._watch.is_slow(seat) for seat in self._seats) >= self._wanted

    def _retire(self, seat: Seat) -> None:
        """Let a worker end in good order, after its on_worker_stop."""
        if seat.process.tell(wire.Stop()) is not wire.Sent.YES:
            seat.process.kill()
        self._seats.remove(seat)
        seat.leave_until = time.monotonic() + LEAVE_WITHIN
        self._leaving.append(seat)

    def _dismiss(self, seat: Seat) -> None:
        """Forget a worker that is gone."""
        for descriptor in (seat.process.sock, seat.process.pidfd):
            if descriptor in self._selector.get_map() and self._selector.get_key(descriptor).data is seat:
                self._selector.unregister(descriptor)
        (self._leaving if seat in self._leaving else self._seats).remove(seat)
        seat.process.close()

    @property
    def _source(self) -> str:
        return self._consumer.options.source
