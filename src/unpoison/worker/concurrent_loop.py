"""Runs several messages at once in a worker, in threads or as tasks, so that each can still be told apart.

Every message has a lane: its own two words of shared memory and its own outcome byte. For tasks a further word names
the lane whose step is running, since all of them share one thread: if the worker dies or blocks, that is the one.
"""

import asyncio
import contextvars
import socket
import threading
import time
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import msgspec

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.worker import wire
from unpoison.worker.batch_loop import peak_memory
from unpoison.worker.call import Call, end_copy, leave
from unpoison.worker.health import Health
from unpoison.worker.marks import BATCH, FAILED, IDLE, Marks

_lane: contextvars.ContextVar[int] = contextvars.ContextVar("unpoison_lane", default=-1)


class Lanes:
    """The worker's side of the lanes: what is written when a message starts and ends. Safe to use from several threads."""

    def __init__(self, sock: socket.socket, marks: Marks, health: Health) -> None:
        self._sock, self._marks, self._health = sock, marks, health
        self._speaking = threading.Lock()
        self._unchecked = 0
        self._damage, self._mended_at = "", 0
        """What the last check that found damage found, and until when it lasted."""

    def begin(self, lane: int) -> None:
        self._marks.begin(lane)

    def end(self, lane: int, code: int, failure: Failure | None) -> None:
        """Send what happened, mark that it is over, then tell the consumer to look."""
        took = max(0, time.monotonic_ns() - self._marks.running(lane)[1])
        with self._speaking:
            damage = self._check(lane, after_failure=failure is not None)
            if not damage and self._marks.running(lane)[1] <= self._mended_at:
                damage = self._damage  # it had begun when another lane's check put the worker back as it was
            try:
                if failure is not None:
                    failure = msgspec.structs.replace(failure, worker_damage=damage) if damage else failure
                    wire.send(self._sock, wire.Failed(0, lane, failure, took))
                self._marks.end(lane, code if failure is None else FAILED)
                wire.send(self._sock, wire.Ended(0, [lane], peak_memory(), took=took))
            except OSError:  # a handler has closed the socket: the marks alone show the consumer how messages ended
                if failure is not None or all(self._marks.running(each)[0] == IDLE for each in range(self._marks.lanes)):
                    leave(1)

    def _check(self, lane: int, *, after_failure: bool) -> str:
        """Compare the worker with what it was: after a failure, when it becomes idle, and after as many messages as a batch has.

        Only an idle worker is put back as it was: while others run, they may have made the change and be about to undo it.
        """
        self._unchecked += 1
        running = self._marks.running
        is_idle = not any(running(other)[0] == 1 for other in range(self._marks.lanes) if other != lane)
        if not (after_failure or is_idle or self._unchecked >= BATCH):
            return ""
        self._unchecked = 0
        damage = self._health.check(self._marks.habits, put_back=is_idle)
        if damage is None:
            return ""
        self._damage, self._mended_at = str(damage), time.monotonic_ns()
        with suppress(OSError):  # a handler has closed the socket
            wire.send(self._sock, wire.Damaged(0, lane, lane, damage.what, damage.reversible, damage.is_lasting))
        return str(damage)


def serve_threads(sock: socket.socket, marks: Marks, call: Call) -> None:
    """One thread for each lane; each waits for the next message of its own lane."""
    lanes, run = Lanes(sock, marks, Health()), call.prepared()
    queues: list[SimpleQueue[tuple[int, Delivery]]] = [SimpleQueue() for _ in range(marks.lanes)]

    def work(lane: int) -> None:
        while True:
            code, delivery = queues[lane].get()
            lanes.begin(lane)
            failure = None
            try:
                call.check_result(run(delivery))
            except BaseException as error:  # whatever it raises is this message's failure, never the thread's
                failure = call.failed(delivery, error)
            end_copy()
            lanes.end(lane, code, failure)

    for lane in range(marks.lanes):
        threading.Thread(target=work, args=(lane,), name=f"unpoison-lane-{lane}", daemon=True).start()
    try:
        while (received := wire.receive(sock, wire.to_worker)) is not None and isinstance(received[0], wire.RunLanes):
            said = received[0]
            for lane, code, delivery in zip(said.lanes, said.codes, said.deliveries, strict=True):
                queues[lane].put((code, delivery))
    except OSError:  # a handler has closed the socket: what still runs may end, and the last one ends this process
        threading.Event().wait()


def serve_tasks(loop: asyncio.AbstractEventLoop, sock: socket.socket, marks: Marks, call: Call) -> None:
    """One task for each lane, all on one event loop.

    Not with asyncio.run: if one message brings the loop to its end, it would cancel the others, and each would look as if it
    had failed by itself.
    """
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_Tasks(sock, marks, call).serve())


class _Tasks:
    def __init__(self, sock: socket.socket, marks: Marks, call: Call) -> None:
        self._sock, self._marks, self._call = sock, marks, call
        self._run = call.prepared()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._limits = _TimeLimits(call.timeout)

    async def serve(self) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.set_task_factory(self._stepping_task)  # type: ignore[arg-type]  # typeshed's protocol is narrower than asyncio
        self._lanes = Lanes(self._sock, self._marks, Health(loop))
        loop.add_reader(self._sock.fileno(), self._receive, over)
        self._limits.watch(loop)
        await over.wait()

    def _receive(self, over: asyncio.Event) -> None:
        received = wire.receive(self._sock, wire.to_worker)
        if received is None or not isinstance(received[0], wire.RunLanes):
            over.set()
            return
        said = received[0]
        for lane, code, delivery in zip(said.lanes, said.codes, said.deliveries, strict=True):
            context = contextvars.copy_context()
            context.run(_lane.set, lane)
            task = asyncio.get_running_loop().create_task(self._one(lane, code, delivery), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, lane: int, code: int, delivery: Delivery) -> None:
        self._lanes.begin(lane)
        failure = None
        limit = asyncio.timeout(self._call.timeout)
        try:
            async with limit:
                self._limits.running.add(limit)
                self._call.check_result(await self._run(delivery))
        except BaseException as error:  # whatever it raises is this message's failure, never the loop's
            failure = self._call.timed_out() if limit.expired() else self._call.failed(delivery, error)
        finally:
            self._limits.running.discard(limit)
        end_copy()
        self._lanes.end(lane, code, failure)

    def _stepping_task(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
        """Every task a handler makes, its own included, notes its lane while one of its steps runs."""
        context: contextvars.Context | None = how.get("context")
        lane = _lane.get() if context is None else context.get(_lane, -1)
        stepped = coro if lane < 0 else _stepping(coro, lane + 1, self._marks.step)
        return asyncio.Task(stepped, loop=loop, **how)


class _TimeLimits:
    """Does not count time in which the whole process stood still, or in which one message blocked the loop for the others."""

    def __init__(self, timeout: float | None) -> None:
        self._tick = 0.0 if timeout is None else min(1.0, timeout / 4)
        self.running: set[asyncio.Timeout] = set()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the clock a few times per limit: if it jumped, all limits move by as much."""
        if self._tick:
            loop.call_later(self._tick, self._look, loop, loop.time())

    def _look(self, loop: asyncio.AbstractEventLoop, looked: float) -> None:
        gap = loop.time() - looked
        if gap > 2 * self._tick:
            for limit in self.running:
                when = limit.when()
                if when is not None and not limit.expired():
                    limit.reschedule(when + gap)
        self.watch(loop)


async def _stepping(coro: Coroutine[Any, Any, Any], lane: int, step: memoryview) -> Any:
    try:
        return await _steps(coro, lane, step)
    except (SystemExit, KeyboardInterrupt) as left:  # asyncio lets these two end the loop, and with it every other message
        raise RuntimeError(f"a task of the handler raised {type(left).__name__}: {left}") from left


@types.coroutine
def _steps(coro: Coroutine[Any, Any, Any], lane: int, step: memoryview) -> Generator[Any, Any, Any]:
    """Drives a coroutine step by step, with the lane's number in shared memory during each of them."""
    value: Any = None
    thrown: BaseException | None = None
    while True:
        step[0] = lane
        try:
            waited_for = coro.send(value) if thrown is None else coro.throw(thrown)
        except StopIteration as ended:
            return ended.value
        finally:
            end_copy()  # a forked copy that went on with the loop would run every other message again
            step[0] = 0
        value = thrown = None
        try:
            value = yield waited_for
        except BaseException as error:  # a cancellation, or what the awaited future raised: it belongs to the coroutine
            thrown = error
