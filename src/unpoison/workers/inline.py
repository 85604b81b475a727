"""How do handlers run in the consumer's own thread? For tests and benchmarks: nothing protects the consumer from them."""

import time
from collections import deque
from collections.abc import Sequence

from unpoison.bell import Bell
from unpoison.failure import Failure
from unpoison.message import Delivery
from unpoison.workers import Ended, Interrupted
from unpoison.workers.call import Call

TURN = 0.05
"""Seconds after which a batch is interrupted to settle what has ended, so that slow handlers do not hold finished messages."""


class InlineWorkers:
    """Runs each message when `ended` is asked for."""

    def __init__(self, call: Call, prefetch: int, bell: Bell) -> None:
        self._call, self._bell = call, bell
        self._prefetch = prefetch
        self._queue: deque[Delivery] = deque()
        self._pace = prefetch

    def room(self) -> int:
        return max(0, self._pace - len(self._queue))

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self._queue.extend(fresh)
        self._queue.extend(deliveries)

    def ended(self) -> Sequence[Ended]:
        if not self._queue:
            return ()
        batch = list(self._queue)
        failures: dict[int, Failure] = {}
        exceptions: dict[int, BaseException] = {}
        run, clock = self._call.prepared(), time.monotonic
        began = clock()
        stop = began + TURN
        done = 0
        for delivery in batch:
            try:
                self._call.check_result(run(delivery))
            except BaseException as error:  # whatever it raises, SystemExit included, is this message's failure
                failures[done] = self._call.failed(delivery, error)
                exceptions[done] = error
            done += 1
            if clock() > stop:
                break
        self._adapt(done, clock() - began)
        self._queue = deque(batch[done:])
        return [Ended(batch[:done], failures, exceptions)]

    def running(self) -> int:
        return len(self._queue)

    def wait(self, timeout: float) -> None:
        self._bell.wait(timeout)

    def surplus(self) -> Sequence[Delivery]:
        return ()

    def take_back(self) -> Sequence[Delivery]:
        left = list(self._queue)
        self._queue.clear()
        return left

    def interrupt(self) -> Interrupted:
        return Interrupted()  # nothing runs between two turns

    def close(self) -> None:
        """Nothing is left behind."""

    def _adapt(self, done: int, took: float) -> None:
        """Take as many at a time as fit into a turn: quick handlers get full batches, slow ones do not hoard."""
        fit = int(done * TURN / took) if took > 0 else self._prefetch
        self._pace = max(1, min(self._prefetch, fit, self._pace * 2))
