"""How does a worker run a batch, one message after the other, at the cost of microseconds?

The order of writes is the whole point: since when, what, then the handler, then how it ended. Whenever this process
dies, what stands in the shared memory says which message was running, which have ended and which never began.
"""

import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from bezoar.message import Delivery
from bezoar.workers import wire
from bezoar.workers.call import Call
from bezoar.workers.marks import BATCH, END, FAILED, IDLE, LANES, Marks


def serve_batches(sock: socket.socket, marks: Marks, call: Call, end_if_grandchild: Callable[[], None]) -> None:
    """Until told to stop: receive a batch, run it, say that it is over."""
    run_body, run_delivery = _body_runner(call), call.prepared()
    while (received := wire.receive(sock, wire.to_worker)) is not None:
        said, _ = received
        if not isinstance(said, wire.Run):
            return
        if said.deliveries is None:
            _run(sock, marks, said, said.bodies, run_body, call, end_if_grandchild)
        else:
            _run(sock, marks, said, said.deliveries, run_delivery, call, end_if_grandchild)
        wire.send(sock, wire.Ended(said.slot, [], peak_memory()))


def _run(
    sock: socket.socket,
    marks: Marks,
    batch: wire.Run,
    items: Iterable[Any],
    run: Callable[[Any], Any],
    call: Call,
    end_if_grandchild: Callable[[], None],
) -> None:
    words, outcomes, clock = marks.words, marks.outcomes, time.monotonic_ns
    slot, code = batch.slot, batch.code
    since, what, end = LANES + 1, LANES, END + slot
    at = slot * BATCH
    for item in items:
        words[since] = clock()
        words[what] = at + 1
        if at - slot * BATCH >= words[end]:  # looked at after claiming it: the consumer may take back what was not claimed
            break
        try:
            run(item)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too are failures of the message, not of the worker
            end_if_grandchild()
            failure = call.failed(item if isinstance(item, Delivery) else _unnamed(item), error)
            wire.send(sock, wire.Failed(slot, at - slot * BATCH, failure))
            outcomes[at] = FAILED
        else:
            end_if_grandchild()
            outcomes[at] = code
        at += 1
    words[what] = IDLE


def _body_runner(call: Call) -> Callable[[bytes], Any]:
    function, decode = call.function, call.decode
    return lambda body: function(decode(body))


def _unnamed(body: bytes) -> Delivery:
    """Stands in where the batch came as bare bodies: nothing that is asked about the failure needs more."""
    return Delivery(0, "", "", body)


def peak_memory() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
