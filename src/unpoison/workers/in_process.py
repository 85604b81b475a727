"""Workers without isolation: handlers run in this process, in the consumer's own thread, in threads or as tasks beside it.

Nothing protects the consumer from them: a handler that crashes takes the process with it, and a time limit cannot be enforced
on a thread. Start-up says so. This process is then the worker of all its sources, so `WorkerHere` runs `on_worker_start`
before the first message of any of them and `on_worker_stop` after the last. Async hooks run on the loop of the app's async
handlers.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from unpoison.errors import ConfigError
from unpoison.model.failure import Failure, describe
from unpoison.model.message import Delivery
from unpoison.reporting.numbers import Durations
from unpoison.worker.call import CLOSING, Call, WorkerHooks
from unpoison.workers.interface import Bell, Ended, Interrupted

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("unpoison")

TURN = 0.05
"""Seconds after which a batch is interrupted to settle what has ended, so that slow handlers do not hold finished messages."""


class _Here:
    """What the three kinds have in common: none can cut off what runs, and what was handed over runs until it is collected."""

    def __init__(self, call: Call, bell: Bell, durations: Durations | None) -> None:
        self._call, self._bell, self._durations = call, bell, durations
        self._results: deque[tuple[Delivery, Failure | None, BaseException | None, int]] = deque()
        """Filled by any number of threads, emptied by the consumer."""
        self._handed = 0

    def ended(self) -> Sequence[Ended]:
        results = [self._results.popleft() for _ in range(len(self._results))]
        self._handed -= len(results)
        failures = {at: failure for at, (_, failure, _, _) in enumerate(results) if failure is not None}
        exceptions = {at: error for at, (_, _, error, _) in enumerate(results) if error is not None}
        if self._durations is not None:
            for _, failure, _, took in results:
                if failure is None or failure.started:
                    self._durations.add(took)
        return [Ended([result[0] for result in results], failures, exceptions)] if results else ()

    def running(self) -> int:
        return self._handed

    def wait(self, timeout: float) -> None:
        self._bell.wait(timeout)

    def surplus(self) -> Sequence[Delivery]:
        return ()

    def interrupt(self) -> Interrupted:
        return Interrupted()

    def close(self) -> None:
        """Nothing is left behind."""


class InlineWorkers(_Here):
    """Runs each message when `ended` is asked for."""

    def __init__(self, call: Call, prefetch: int, bell: Bell, durations: Durations | None = None) -> None:
        super().__init__(call, bell, durations)
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
        run, clock = self._call.prepared(), time.monotonic_ns
        began = clock()
        stop = began + int(TURN * 1e9)
        times = None if self._durations is None else [began]
        took: dict[int, int | None] = {}
        done = 0
        for delivery in batch:
            try:
                self._call.check_result(run(delivery))
            except BaseException as error:  # whatever it raises, SystemExit included, is this message's failure
                now = clock()
                failures[done] = self._call.failed(delivery, error)
                exceptions[done] = error
                if times is not None:
                    took[done] = now - times[-1] if failures[done].started else None
            done += 1
            now = clock()
            if times is not None:
                times.append(now)
            if now > stop:
                break
        self._adapt(done, (clock() - began) / 1e9)
        if self._durations is not None and times is not None:
            self._durations.add_batch(times, took)
        self._queue = deque(batch[done:])
        return [Ended(batch[:done], failures, exceptions)]

    def running(self) -> int:
        return len(self._queue)

    def take_back(self) -> Sequence[Delivery]:
        left = list(self._queue)
        self._queue.clear()
        return left

    def _adapt(self, done: int, took: float) -> None:
        """Take as many at a time as fit into a turn: quick handlers get full batches, slow ones do not hoard."""
        fit = int(done * TURN / took) if took > 0 else self._prefetch
        self._pace = max(1, min(self._prefetch, fit, self._pace * 2))


TARGET = 0.05
"""Seconds of work to hold ready for each thread."""


class ThreadWorkers(_Here):
    """`concurrency` threads that take one message at a time from a shared queue."""

    def __init__(self, call: Call, concurrency: int, prefetch: int, bell: Bell, durations: Durations | None = None) -> None:
        super().__init__(call, bell, durations)
        self._concurrency, self._prefetch = concurrency, prefetch
        self._queue: deque[Delivery] = deque()
        self._work = threading.Condition()
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

    def take_back(self) -> Sequence[Delivery]:
        with self._work:
            left = list(self._queue)
            self._queue.clear()
            self._handed -= len(left)
            return left

    def close(self) -> None:
        with self._work:
            self._closed = True
            self._work.notify_all()

    def _serve(self) -> None:
        run, clock = self._call.prepared(), time.monotonic_ns
        while True:
            with self._work:
                while not self._queue and not self._closed:
                    self._work.wait()
                if not self._queue:
                    return
                delivery = self._queue.popleft()
            began = clock()
            failure, error = None, None
            try:
                self._call.check_result(run(delivery))
                took = clock() - began
            except BaseException as raised:  # whatever it raises is this message's failure, never the thread's
                took = clock() - began
                failure, error = self._call.failed(delivery, raised), raised
            self._average += 0.1 * (took / 1e9 - self._average)
            self._results.append((delivery, failure, error, took))
            self._bell.ring()


class TaskWorkers(_Here):
    """At most `concurrency` tasks at a time; a task over the time limit is cancelled."""

    def __init__(
        self,
        call: Call,
        concurrency: int,
        bell: Bell,
        loop: "asyncio.AbstractEventLoop",
        durations: Durations | None = None,
    ) -> None:
        super().__init__(call, bell, durations)
        import asyncio  # noqa: PLC0415 - takes 60 ms, and only async handlers need it

        self._timeout = partial(asyncio.timeout, call.timeout)
        self._concurrency, self._loop = concurrency, loop
        self._tasks: set[asyncio.Task[None]] = set()

    def room(self) -> int:
        return max(0, self._concurrency - self._handed)

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self._handed += len(deliveries) + len(fresh)
        self._loop.call_soon_threadsafe(self._launch, [*fresh, *deliveries])

    def take_back(self) -> Sequence[Delivery]:
        """Every task starts at once, so there is nothing to take back."""
        return ()

    def _launch(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            task = self._loop.create_task(self._run(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, delivery: Delivery) -> None:
        failure: Failure | None = None
        error: BaseException | None = None
        limit, began = self._timeout(), time.monotonic_ns()
        try:
            async with limit:
                self._call.check_result(await self._call.prepared()(delivery))
            took = time.monotonic_ns() - began
        except BaseException as raised:  # whatever it raises is this message's failure, never the loop's
            took = time.monotonic_ns() - began
            failure = self._call.timed_out() if limit.expired() else self._call.failed(delivery, raised)
            error = raised
        self._results.append((delivery, failure, error, took))
        self._bell.ring()


class LoopThread:
    """An event loop that always runs, in a thread of its own. Everything async of one app runs on it, hooks and handlers."""

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - takes 60 ms, and only async handlers need it

        self._asyncio = asyncio
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="unpoison-tasks", daemon=True)
        self._thread.start()

    def has_finished(self, result: Awaitable[Any], limit: float) -> bool:
        """Await this on the loop, for so many seconds at most; then it is cancelled. What it raises is raised."""
        from concurrent.futures import wait  # noqa: PLC0415 - comes with asyncio

        awaited = self._asyncio.run_coroutine_threadsafe(self._finish(result, limit), self.loop)
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

    async def _finish(self, result: Awaitable[Any], limit: float) -> bool:
        within = self._asyncio.timeout(limit)
        try:
            async with within:
                await result
        except TimeoutError:
            if not within.expired():  # it is the awaited code's own
                raise
            return False
        return True


class WorkerHere:
    """This process as the worker of an app. Safe to use from several threads."""

    def __init__(self, hooks: Callable[[], WorkerHooks], start_timeout: float) -> None:
        self._hooks, self._start_timeout = hooks, start_timeout
        self._lock = threading.RLock()
        self._loop: LoopThread | None = None
        self._is_started = False
        self._problem: ConfigError | None = None

    def start(self) -> None:
        """Run the start hooks, unless that was done. Raises if one has failed: then no handler may start."""
        with self._lock:
            if not self._is_started:
                hooks = self._hooks()
                self._is_started = True
                self._problem = self._start_problem(hooks)
            if self._problem is not None:
                raise self._problem

    def loop_thread(self) -> LoopThread:
        """The loop of everything async, made when it is first needed."""
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread()
            return self._loop

    def close(self) -> None:
        """Run the stop hooks, if the start hooks have run."""
        with self._lock:
            if self._is_started and self._problem is None:
                for function in self._hooks().stop:
                    self._call_stop_hook(function)
            self._is_started, self._problem = False, None
            if self._loop is not None:
                self._loop.close()
                self._loop = None

    def _start_problem(self, hooks: WorkerHooks) -> ConfigError | None:
        try:
            for function in hooks.start:
                self._call(function, self._start_timeout, "start_timeout")
        except BaseException as error:  # user code; SystemExit too must not let the other sources start
            name, text, _ = describe(error)
            problem = ConfigError(
                f"on_worker_start raised {name}: {text}. No message was started. Fix it, then start this consumer again."
            )
            problem.__cause__ = error
            return problem
        return None

    def _call_stop_hook(self, function: Callable[[], Any]) -> None:
        try:
            self._call(function, CLOSING, "the time there is at the end")
        except BaseException as error:  # user code
            name = type(error).__name__
            log.exception("on_worker_stop raised %s. Messages are not affected; what it was to close may be left open.", name)

    def _call(self, function: Callable[[], Any], limit: float, name: str) -> None:
        """Call it here; await what it returns, if that can be awaited, on the loop."""
        result = function()
        if isinstance(result, Awaitable) and not self.loop_thread().has_finished(result, limit):
            raise TimeoutError(f"it took more than {limit:g} s ({name})")
