"""Runs a batch in a worker, one message after the other, at the cost of microseconds.

The order of writes is the whole point: since when, what, then the handler, then how it ended. Whenever this process
dies, the shared memory shows which message was running, which have ended and which never began.
"""

import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from unpoison.model.message import Delivery
from unpoison.worker import wire
from unpoison.worker.call import Call, copies, end_copy
from unpoison.worker.health import Health
from unpoison.worker.marks import FAILED, IDLE, Marks


def serve_batches(sock: socket.socket, marks: Marks, call: Call) -> None:
    """Receive a batch, run it, report that it is over; until told to stop, or until something is wrong with this process."""
    run_delivery, health = call.prepared(), Health()
    while (received := wire.receive(sock, wire.to_worker)) is not None:
        said, _ = received
        if not isinstance(said, wire.Run):
            return
        batch = _Batch(sock, marks, said, call, health)
        if said.deliveries is None:
            _run(batch, said.bodies, call.decode, call.function)
        else:
            _run(batch, said.deliveries, _as_it_is, run_delivery)
        if not batch.is_leaving:
            batch.check(len(said.bodies if said.deliveries is None else said.deliveries) - 1)
        wire.send(sock, wire.Ended(said.slot, [], peak_memory(), batch.is_leaving))
        if batch.is_leaving:
            return


class _Batch:
    """A batch while it runs: reports its failures, and checks whether the worker is still sound."""

    def __init__(self, sock: socket.socket, marks: Marks, said: wire.Run, call: Call, health: Health) -> None:
        self.marks, self.slot, self.code = marks, said.slot, said.code
        self._sock, self._call, self._health = sock, call, health
        self.check_result = call.check_result
        self._unchecked = 0
        self.is_leaving = False

    def failed(self, index: int, item: Any, error: BaseException) -> None:
        """Report what happened, and check the worker: another message may have caused it."""
        took = max(0, time.monotonic_ns() - self.marks.running_in_batch()[1])
        failure = self._call.failed(item if isinstance(item, Delivery) else _unnamed(item), error)
        if damage := self.check(index):
            failure = msgspec.structs.replace(failure, worker_damage=damage)
        wire.send(self._sock, wire.Failed(self.slot, index, failure, took))
        self.is_leaving = self.is_leaving or failure.blames_process

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
            batch.failed(at - 1 - first, item, error)
            outcomes[at - 1] = FAILED
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
