"""How does a worker run a batch, one message after the other, at the cost of microseconds?

The order of writes is the whole point: since when, what, then the handler, then how it ended. Whenever this process
dies, what stands in the shared memory says which message was running, which have ended and which never began.
"""

import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from unpoison.message import Delivery
from unpoison.workers import forked, wire
from unpoison.workers.call import Call
from unpoison.workers.marks import BATCH, END, FAILED, IDLE, LANES, Marks


def serve_batches(sock: socket.socket, marks: Marks, call: Call) -> None:
    """Until told to stop: receive a batch, run it, say that it is over."""
    run_delivery = call.prepared()
    while (received := wire.receive(sock, wire.to_worker)) is not None:
        said, _ = received
        if not isinstance(said, wire.Run):
            return
        if said.deliveries is None:
            _run(sock, marks, said, said.bodies, call.decode, call.function, call)
        else:
            _run(sock, marks, said, said.deliveries, _as_it_is, run_delivery, call)
        wire.send(sock, wire.Ended(said.slot, [], peak_memory()))


def _run(
    sock: socket.socket,
    marks: Marks,
    batch: wire.Run,
    items: Iterable[Any],
    decode: Callable[[Any], Any],
    function: Callable[[Any], Any],
    call: Call,
) -> None:
    """What is paid for every message. No call in here that is not needed, and no look-up that can be done before."""
    words, outcomes, clock, copies = marks.words, marks.outcomes, time.monotonic_ns, forked.copies
    since, what, end, code = LANES + 1, LANES, END + batch.slot, batch.code
    first = at = batch.slot * BATCH
    for item in items:
        words[since] = clock()
        at += 1
        words[what] = at
        if at - first > words[end]:  # looked at after claiming it: the consumer may take back what was not claimed
            break
        try:
            function(decode(item))
        except BaseException as error:  # SystemExit and KeyboardInterrupt too are failures of the message, not of the worker
            forked.end_copy()
            failure = call.failed(item if isinstance(item, Delivery) else _unnamed(item), error)
            wire.send(sock, wire.Failed(batch.slot, at - 1 - first, failure))
            outcomes[at - 1] = FAILED
        else:
            if copies:
                forked.end_copy()
            outcomes[at - 1] = code
    words[what] = IDLE


def _as_it_is(delivery: Delivery) -> Delivery:
    return delivery


def _unnamed(body: bytes) -> Delivery:
    """Stands in where the batch came as bare bodies: nothing that is asked about the failure needs more."""
    return Delivery(0, "", "", body)


def peak_memory() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
