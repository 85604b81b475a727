"""Runs async handlers in the consumer's process, as tasks on one event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import wait
from typing import Any

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.worker.call import Call, timed_out
from unpoison.workers.bell import Bell
from unpoison.workers.interface import Ended, Interrupted, ResultQueue


class LoopThread:
    """An event loop that always runs, in a thread of its own. Everything async of one app runs on it, hooks and handlers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="unpoison-tasks", daemon=True)
        self._thread.start()

    def has_finished(self, result: Awaitable[Any], limit: float) -> bool:
        """Await this on the loop, for so many seconds at most; then it is cancelled. What it raises is raised."""
        awaited = asyncio.run_coroutine_threadsafe(_has_finished(result, limit), self.loop)
        wait([awaited], limit + 1)  # longer than the limit only if something keeps the loop from running
        if not awaited.done():
            awaited.cancel()
            return False
        return awaited.result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self.loop.close()


async def _has_finished(result: Awaitable[Any], limit: float) -> bool:
    within = asyncio.timeout(limit)
    try:
        async with within:
            await result
    except TimeoutError:
        if not within.expired():  # it is the awaited code's own
            raise
        return False
    return True


class TaskWorkers:
    """At most `concurrency` tasks at a time; a task over the time limit is cancelled."""

    def __init__(self, call: Call, concurrency: int, bell: Bell, loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._concurrency, self._bell = call, concurrency, bell
        self._results = ResultQueue()
        self._handed = 0
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def room(self) -> int:
        return max(0, self._concurrency - self._handed)

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self._handed += len(deliveries) + len(fresh)
        self._loop.call_soon_threadsafe(self._launch, [*fresh, *deliveries])

    def ended(self) -> Sequence[Ended]:
        ended = self._results.collect()
        self._handed -= sum(len(batch.deliveries) for batch in ended)
        return ended

    def running(self) -> int:
        return self._handed

    def wait(self, timeout: float) -> None:
        self._bell.wait(timeout)

    def surplus(self) -> Sequence[Delivery]:
        return ()

    def take_back(self) -> Sequence[Delivery]:
        """Every task starts at once, so there is nothing to take back."""
        return ()

    def interrupt(self) -> Interrupted:
        return Interrupted()  # a thread cannot be cut off

    def close(self) -> None:
        """Nothing is left to end here: the loop belongs to the app."""

    def _launch(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            task = self._loop.create_task(self._run(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, delivery: Delivery) -> None:
        failure: Failure | None = None
        error: BaseException | None = None
        limit = asyncio.timeout(self._call.timeout)
        try:
            async with limit:
                self._call.check_result(await self._call.prepared()(delivery))
        except BaseException as raised:  # whatever it raises is this message's failure, never the loop's
            failure = timed_out(self._call) if limit.expired() else self._call.failed(delivery, raised)
            error = raised
        self._results.add(delivery, failure, error)
        self._bell.ring()
