"""How do handlers run in threads of the consumer's process?

A time limit cannot be enforced on a thread, and a handler that crashes takes the process with it; start-up says so.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

from unpoison.bell import Bell
from unpoison.message import Delivery
from unpoison.workers import Ended, Interrupted
from unpoison.workers.call import Call
from unpoison.workers.endings import Endings

TARGET = 0.05
"""Seconds of work to hold ready for each thread."""


class ThreadWorkers:
    """`concurrency` threads that take one message at a time from a shared queue."""

    def __init__(self, call: Call, concurrency: int, prefetch: int, bell: Bell) -> None:
        self._call, self._concurrency, self._prefetch, self._bell = call, concurrency, prefetch, bell
        self._queue: deque[Delivery] = deque()
        self._endings = Endings()
        self._work = threading.Condition()
        self._handed = 0
        self._closed = False
        self._average = TARGET
        self._threads = [
            threading.Thread(target=self._serve, name=f"unpoison-worker-{n}", daemon=True) for n in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def room(self) -> int:
        ahead = int(TARGET / self._average) if self._average > 0 else self._prefetch
        return max(0, self._concurrency * (1 + min(self._prefetch, ahead)) - self._handed)

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        with self._work:
            self._handed += len(deliveries) + len(fresh)
            self._queue.extend(fresh)
            self._queue.extend(deliveries)
            self._work.notify(len(deliveries) + len(fresh))

    def ended(self) -> Sequence[Ended]:
        ended = self._endings.collect()
        self._handed -= sum(len(batch.deliveries) for batch in ended)
        return ended

    def running(self) -> int:
        return self._handed

    def wait(self, timeout: float) -> None:
        self._bell.wait(timeout)

    def surplus(self) -> Sequence[Delivery]:
        return ()

    def take_back(self) -> Sequence[Delivery]:
        with self._work:
            left = list(self._queue)
            self._queue.clear()
            self._handed -= len(left)
            return left

    def interrupt(self) -> Interrupted:
        return Interrupted()  # a thread cannot be cut off

    def close(self) -> None:
        with self._work:
            self._closed = True
            self._work.notify_all()

    def _serve(self) -> None:
        run = self._call.prepared()
        while True:
            with self._work:
                while not self._queue and not self._closed:
                    self._work.wait()
                if not self._queue:
                    return
                delivery = self._queue.popleft()
            began = time.monotonic()
            failure, error = None, None
            try:
                self._call.check_result(run(delivery))
            except BaseException as raised:  # whatever it raises is this message's failure, never the thread's
                failure, error = self._call.failed(delivery, raised), raised
            self._average += 0.1 * (time.monotonic() - began - self._average)
            self._endings.add(delivery, failure, error)
            self._bell.ring()
