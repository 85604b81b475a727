"""Runs a batch in a worker, one message after the other, at the cost of microseconds.

The order of writes is the whole point: since when, what, then the handler, then how it ended. Whenever this process
dies, the shared memory shows which message was running, which have ended and which never began.
"""

import resource
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.reporting.current_message import CurrentMessage, answering_for_process
from unpoison.worker import wire
from unpoison.worker.call import Call, copies, end_copy
from unpoison.worker.health import Health
from unpoison.worker.marks import BATCH, FAILED, IDLE, Marks
from unpoison.worker.on_failure import FailureHooks


def serve_batches(sock: socket.socket, marks: Marks, call: Call, hooks: FailureHooks) -> None:
    """Receive a batch, run it, report that it is over; until told to stop, or until something is wrong with this process."""
    current = _Current(marks, call.source)
    with answering_for_process(current.message):
        _serve(sock, marks, call, hooks, current)


def _serve(sock: socket.socket, marks: Marks, call: Call, hooks: FailureHooks, current: "_Current") -> None:
    run_delivery, health = call.prepared(), Health()
    while (received := wire.receive(sock, wire.to_worker)) is not None:
        said, _ = received
        if not isinstance(said, wire.Run):
            return
        current.begin(said)
        batch = _Batch(sock, marks, said, call, health, hooks)
        if said.deliveries is None:
            _run(batch, said.bodies, call.decode, call.function)
        else:
            _run(batch, said.deliveries, _as_it_is, run_delivery)
        if not batch.is_leaving:
            batch.check(len(said.bodies if said.deliveries is None else said.deliveries) - 1)
        wire.send(sock, wire.Ended(said.slot, [], peak_memory(), batch.is_leaving))
        if batch.is_leaving:
            return


class _Current:
    """Which message runs, as the marks say. Asked when something is logged, from any thread."""

    def __init__(self, marks: Marks, source: str) -> None:
        self._marks, self._source = marks, source
        self._said: wire.Run | None = None
        self._decoded: tuple[wire.Run | None, Sequence[tuple[str, int]]] = (None, ())
        """A batch, and the ids and attempts of its messages."""

    def begin(self, said: wire.Run) -> None:
        self._said = said

    def message(self) -> CurrentMessage | None:
        said, what = self._said, self._marks.running()[0]
        if said is None:
            return None
        batch, names = self._decoded
        if batch is not said:
            self._decoded = said, (names := wire.names_in(said))
        index = what - 1 - said.slot * BATCH
        return CurrentMessage(names[index][0], self._source, names[index][1]) if 0 <= index < len(names) else None


class _Batch:
    """A batch while it runs: reports its failures, and checks whether the worker is still sound."""

    def __init__(
        self, sock: socket.socket, marks: Marks, said: wire.Run, call: Call, health: Health, hooks: FailureHooks
    ) -> None:
        self.marks, self.slot, self.code = marks, said.slot, said.code
        self._sock, self._call, self._health, self._hooks = sock, call, health, hooks
        self.check_result = call.check_result
        self._unchecked = 0
        self.is_leaving = False

    def failed(self, index: int, item: Any, error: BaseException) -> Failure:
        """Report what happened, and check the worker: another message may have caused it."""
        took = max(0, time.monotonic_ns() - self.marks.running_in_batch()[1])
        failure = self._call.failed(item if isinstance(item, Delivery) else _unnamed(item), error)
        if damage := self.check(index):
            failure = msgspec.structs.replace(failure, worker_damage=damage)
        wire.send(self._sock, wire.Failed(self.slot, index, failure, took))
        self.is_leaving = self.is_leaving or failure.blames_process
        return failure

    def call_hooks(self, item: Any, failure: Failure, error: BaseException) -> None:
        """Once the failure is marked: nothing that a hook does can change what becomes of the message."""
        if isinstance(item, Delivery):  # always, if there are hooks
            self._hooks.call(item, failure, error)

    def check(self, index: int) -> str:
        """Compare the worker with what it was; message `index` has just ended. Returns what has changed, in words."""
        first, self._unchecked = self._unchecked, index + 1
        damage = self._health.check(self.marks.habits) if index >= first else None
        if damage is None:
            return ""
        wire.send(self._sock, wire.Damaged(self.slot, first, index, damage.what, damage.reversible, damage.is_lasting))
        self.is_leaving = self.is_leaving or damage.is_lasting
        return str(damage)


def _run(batch: _Batch, items: Iterable[Any], decode: Callable[[Any], Any], function: Callable[[Any], Any]) -> None:
    """Runs for every message: no call in here that is not needed, and no look-up that can be done before."""
    words, outcomes, times, what, end, first = batch.marks.batch_view(batch.slot)
    clock, forked, check_result, code = time.monotonic_ns, copies, batch.check_result, batch.code
    at = first
    for item in items:
        at += 1
        times[at] = clock()
        words[what] = at
        if at - first > words[end]:  # looked at after claiming it: the consumer may take back what was not claimed
            break
        try:
            result = function(decode(item))
            if result is not None:
                check_result(result)
                result = None  # it may be large, and must not last until the next message has ended
        except BaseException as error:  # SystemExit and KeyboardInterrupt too are failures of the message, not of the worker
            end_copy()
            failure = batch.failed(at - 1 - first, item, error)
            outcomes[at - 1] = FAILED
            batch.call_hooks(item, failure, error)
            if batch.is_leaving:
                break
        else:
            if forked:
                end_copy()
            outcomes[at - 1] = code
    else:
        times[at + 1] = clock()
    words[what] = IDLE


def _as_it_is(delivery: Delivery) -> Delivery:
    return delivery


def _unnamed(body: bytes | None) -> Delivery:
    """A stand-in where the batch came as bare bodies: classifying the failure needs no more."""
    return Delivery(0, "", "", body or b"")


def peak_memory() -> int:
    """The most memory that this process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
