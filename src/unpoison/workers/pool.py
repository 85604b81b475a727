"""Keeps the worker processes of one source and hands them messages.

`IsolatedWorkers` keeps the wanted number of worker processes and a spare one, hands them batches that fit their speed, and
collects the results. When a worker dies, the message that was running in it is charged, and the rest of its batch goes to others.
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
from unpoison.reporting.numbers import SourceNumbers, WorkerEnd
from unpoison.worker import wire
from unpoison.workers.damage import Trust
from unpoison.workers.deaths import Death, Deaths, judge_death
from unpoison.workers.dispatching import Dispatch, Pace
from unpoison.workers.interface import Bell, Ended, Interrupted, Result
from unpoison.workers.pooled_worker import PooledWorker
from unpoison.workers.template_client import StartBackoff
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
        numbers: SourceNumbers | None = None,
    ) -> None:
        self._consumer, self._settings, self._template, self._ties = consumer, settings, template, inherited_fds
        self._bell, self._deaths, self._numbers = bell, deaths, numbers or SourceNumbers()
        self._wanted = consumer.options.processes
        self._workers: list[PooledWorker] = []
        self._leaving: list[PooledWorker] = []
        self._unjudged: list[Death] = []
        self._results: list[Result] = []
        self._start_backoff = StartBackoff(consumer.options, settings.start_timeout)
        self._is_closing = False
        self._pace = Pace(consumer.options)
        self._watch = Watch(consumer.options)
        self._waiting = Dispatch(consumer.options, self._pace, self._watch, settings.recycle_messages)
        self._trust = Trust(consumer.options.source, consumer.options.name)
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell.fileno(), selectors.EVENT_READ)
        self._start_workers()

    def room(self) -> int:
        in_hand = sum(worker.assignments.weight() for worker in self._workers) + self._waiting.weight()
        if in_hand > HELD_BYTES or self._is_stuck():
            return 0
        full = self._wanted * self._pace.per_worker()
        # What waits for a fresh worker keeps nothing else from being fetched, within limits.
        return max(0, full - self.running() + min(len(self._waiting.fresh), full))

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self._waiting.queue.extend(deliveries)
        self._waiting.fresh.extend(fresh)
        self._waiting.hand_out(self._workers)

    def ended(self) -> Sequence[Result]:
        if not self._results:
            self._attend(0.0)
        results, self._results = self._results, []
        return results

    def running(self) -> int:
        held = sum(worker.assignments.held() for worker in self._workers)
        return held + len(self._waiting) + len(self._unjudged) + sum(len(e.deliveries) for e in self._results)

    def wait(self, timeout: float) -> None:
        if not self._results:
            self._attend(min(timeout, self._watch.next_look(self._workers), self._deaths.next_judgement(self._unjudged)))
            self._bell.silence()  # here only: after a wait the consumer looks for new messages

    def problem(self) -> str:
        """Why no worker can start a message; empty if one can. From any thread."""
        if any(worker.ready for worker in list(self._workers)):
            return ""
        return f"No worker can start: {self._start_backoff.why}" if self._start_backoff.why else "Its workers are starting."

    def surplus(self) -> Sequence[Delivery]:
        if not self._waiting.queue or not self._is_stuck():
            return ()
        surplus, self._waiting.queue = self._waiting.queue, []
        return surplus

    def take_back(self) -> Sequence[Delivery]:
        taken = self._waiting.take_all()
        for worker in self._workers:
            if worker.assignments.held() > len(worker.assignments.running()):
                taken += self._tail_of(worker)
        return taken

    def interrupt(self) -> Interrupted:
        """Kill every worker. What had ended by then still counts; what had not is not charged."""
        unstarted = self._waiting.take_all()
        running = [one for death in self._unjudged for one in death.post_mortem.running]
        for worker in [*self._workers, *self._leaving]:
            worker.process.kill()
        for worker in list(self._workers):
            self._read_last_messages(worker)
            post_mortem = worker.post_mortem()
            self._results.append(replace(post_mortem.ended, in_used_worker=not worker.is_solo))
            unstarted += [*post_mortem.unstarted, *self._waiting.take_all()]
            running += post_mortem.running
            self._dismiss(worker)
        self._unjudged.clear()
        results, self._results = self._results, []
        return Interrupted(results, unstarted, [one.delivery for one in running])

    def close(self) -> None:
        self._is_closing = True
        for worker in list(self._workers):
            self._retire(worker)
        until = time.monotonic() + LEAVE_WITHIN
        while self._leaving and time.monotonic() < until:
            self._attend(min(0.05, until - time.monotonic()))
            self._bell.silence()
        for worker in list(self._leaving):
            worker.post_mortem()
            self._dismiss(worker)
        self._selector.close()

    def _attend(self, timeout: float) -> None:
        """Listen to the workers for so long, deal with those that died or take too long, and hand out what waits."""
        active = {key.data for key, _ in self._selector.select(max(0.0, timeout))}
        for worker in [worker for worker in self._workers if worker in active]:
            self._listen(worker)
        for worker in [worker for worker in self._workers if worker in active or worker.process.hung_up]:
            if worker.process.hung_up and not worker.process.is_gone():
                self._give_no_more(worker)
            if worker.is_over():
                self._on_exit(worker)
        for worker in [worker for worker in self._leaving if worker.is_over()]:
            self._on_exit(worker)
        for worker in self._start_backoff.hanging(self._workers):
            self._on_exit(worker)
        for worker in [worker for worker in self._workers if worker.retiring and worker.ready and not worker.assignments.held()]:
            self._retire(worker)
        self._judge_deaths()
        if self._watch.is_due():
            self._look_at_clocks()
        self._waiting.hand_out(self._workers)  # what a dead worker left goes to the spare one; only then is a new spare made
        self._start_workers()

    def _look_at_clocks(self) -> None:
        for worker in self._watch.overdue(self._workers):
            worker.late = self._watch.caught(worker)
            if worker.late is not None:
                worker.process.kill()
                self._on_exit(worker)
        for worker in self._watch.slow(self._workers):
            self._waiting.queue[:0] = self._tail_of(worker)  # a slow message must not hold up those behind it

    def _listen(self, worker: PooledWorker) -> None:
        for said in worker.process.said():
            match said:
                case wire.Ready():
                    worker.ready = True
                    self._start_backoff.worked()
                    self._trust.prepare(worker)
                case wire.Broken(text):
                    worker.problem = text
                case wire.Damaged():
                    self._trust.damaged(worker, said, self._workers)
                case wire.Ended() | wire.Failed():
                    try:
                        ended = self._heard(worker, said)
                    except ValueError as lie:
                        log.warning(
                            "Killing worker %d of %r: what it reports cannot be true (%s). Its messages run again elsewhere.",
                            worker.process.pid,
                            self._consumer.options.name,
                            lie,
                            extra={"event": "worker-not-believed", "source": self._consumer.options.source},
                        )
                        worker.process.kill()
                        return
                    if ended is not None:
                        self._took(worker, ended, said)

    def _heard(self, worker: PooledWorker, said: wire.Ended | wire.Failed) -> Ended | None:
        if isinstance(said, wire.Failed):
            # Evidence against the process: what the worker already has still ends in it, and nothing more starts.
            if said.failure.blames_process and not worker.retiring:
                worker.retiring = True
                self._numbers.worker_ends[WorkerEnd.MEMORY] += "MemoryError" in said.failure.type_name
        elif said.leaving:
            worker.retiring = True
            self._waiting.queue[:0] = worker.assignments.take_back()
        ended = worker.assignments.heard(said)
        return None if ended is None else replace(ended, in_used_worker=not worker.is_solo)

    def _took(self, worker: PooledWorker, ended: Ended, said: wire.Ended | wire.Failed) -> None:
        self._results.append(ended)
        if not self._trust.ended(worker, ended) and not worker.retiring:
            worker.retiring = True
            self._waiting.queue[:0] = self._tail_of(worker)
        worker.uses += len(ended.deliveries)
        self._pace.measured(worker, len(ended.deliveries))
        limit, memory = self._settings.recycle_messages, self._settings.recycle_memory
        grown = memory is not None and isinstance(said, wire.Ended) and said.peak > memory
        self._numbers.worker_ends[WorkerEnd.MEMORY] += grown and not worker.retiring
        if worker.is_solo or grown or (limit is not None and worker.uses >= limit):
            worker.retiring = True
        if worker.retiring and not worker.assignments.held() and worker in self._workers:  # it may be leaving already
            self._retire(worker)

    def _on_exit(self, worker: PooledWorker) -> None:
        """The worker is gone or going: make sure of it, read what it still sent, and find out what it leaves."""
        self._read_last_messages(worker)
        post_mortem = worker.post_mortem()
        if worker in self._leaving:
            self._dismiss(worker)
            return
        self._numbers.worker_ends[worker.why_ended] += 1
        if not worker.ready:
            self._start_backoff.failed(worker)
        self._put_back(worker, post_mortem.unstarted)
        if post_mortem.ended.deliveries:
            self._results.append(replace(post_mortem.ended, in_used_worker=not worker.is_solo))
        if post_mortem.running or not post_mortem.is_sound:
            self._unjudged.append(self._deaths.note(worker, post_mortem))
        self._dismiss(worker)

    def _read_last_messages(self, worker: PooledWorker) -> None:
        """Read what a worker sent before it ended: above all that it was leaving, and why."""
        if worker.end():
            self._listen(worker)

    def _put_back(self, worker: PooledWorker, unstarted: Sequence[Delivery]) -> None:
        if worker.is_solo:
            self._waiting.fresh.extendleft(unstarted)  # one at most, and it still needs a new worker
        else:
            self._waiting.queue[:0] = unstarted

    def _give_no_more(self, worker: PooledWorker) -> None:
        """A handler closed the worker's socket. What runs may still end, as its marks will show; nothing more starts there."""
        worker.retiring = True
        if worker.process.sock in self._selector.get_map():
            self._selector.unregister(worker.process.sock)
        self._put_back(worker, self._tail_of(worker))

    def _judge_deaths(self) -> None:
        """Charge the culprits. Where several workers died at once, it is not known yet who is to blame."""
        for death in list(self._unjudged):
            if self._deaths.is_settled(death):
                self._unjudged.remove(death)
                self._results += judge_death(death, together=self._deaths.together(death))
                self._note_duration(death)

    def _note_duration(self, death: Death) -> None:
        """Of the message that was running, where it is known which that was."""
        is_one = death.late is not None or death.post_mortem.culprit is not None
        if self._numbers.durations is not None and is_one and death.crash.elapsed is not None:
            self._numbers.durations.add(int(death.crash.elapsed * 1e9))

    def _tail_of(self, worker: PooledWorker) -> Sequence[Delivery]:
        try:
            if worker.process.stand_still():
                return worker.assignments.take_back()
            self._watch.could_not_stop(worker)
            return ()
        finally:
            worker.process.go_on()

    def _start_workers(self) -> None:
        """Start as many workers as are wanted, and a spare one for a message that needs a fresh worker. Workers that run a
        single message, or are about to leave, come on top: there is always one to take over."""
        while self._start_backoff.is_due() and not self._is_closing:
            try:
                self._template.revive()
                if sum(1 for worker in self._workers if not (worker.is_solo or worker.retiring)) > self._wanted:
                    return
                process = self._template.worker(self._consumer, self._ties())
            except (UnpoisonError, OSError) as error:
                self._start_backoff.wait(str(error))  # its app can no longer be imported, or the machine is full
                return
            worker = PooledWorker(process, self._consumer, self._numbers.durations)
            self._workers.append(worker)
            self._selector.register(worker.process.sock, selectors.EVENT_READ, worker)
            self._selector.register(worker.process.pidfd, selectors.EVENT_READ, worker)

    def _is_stuck(self) -> bool:
        """Whether every worker is busy with a slow message, so that what waits here would wait as long."""
        return bool(self._workers) and sum(self._watch.is_slow(worker) for worker in self._workers) >= self._wanted

    def _retire(self, worker: PooledWorker) -> None:
        """Let a worker end cleanly, after its on_worker_stop."""
        if worker.process.tell(wire.Stop()) is not wire.Sent.YES:
            worker.process.kill()
        self._workers.remove(worker)
        worker.leave_until = time.monotonic() + LEAVE_WITHIN
        self._leaving.append(worker)

    def _dismiss(self, worker: PooledWorker) -> None:
        """Forget a worker that is gone."""
        for descriptor in (worker.process.sock, worker.process.pidfd):
            if descriptor in self._selector.get_map() and self._selector.get_key(descriptor).data is worker:
                self._selector.unregister(descriptor)
        (self._leaving if worker in self._leaving else self._workers).remove(worker)
        worker.process.close()
