"""What do handlers that run in the consumer's own process need around them? `on_worker_start` and `on_worker_stop`, once each.

This process is then the worker of all its sources: the hooks run before the first message of any of them and after the last.
Async hooks run on the loop of the app's async handlers, so that what they open can be used there.
"""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unpoison.errors import ConfigError
from unpoison.failure import describe
from unpoison.workers.awaiting import Awaiting
from unpoison.workers.hooks import WorkerHooks

if TYPE_CHECKING:
    from unpoison.workers.tasks import LoopThread

log = logging.getLogger("unpoison")


class WorkerHere:
    """This process as the worker of an app. Safe to use from several threads."""

    def __init__(self, hooks: Callable[[], WorkerHooks], *, has_async: bool) -> None:
        self._hooks, self._has_async = hooks, has_async
        self._lock = threading.Lock()
        self._loop: LoopThread | Awaiting | None = None
        self._problem: ConfigError | None = None

    def start(self) -> None:
        """Run the start hooks, unless that was done. Raises what stands against starting any handler."""
        with self._lock:
            if self._loop is None:
                hooks = self._hooks()
                self._loop = self._make_loop()
                self._run_start_hooks(hooks, self._loop)
            if self._problem is not None:
                raise self._problem

    def loop_thread(self) -> "LoopThread":
        """The loop of async handlers. Only for an app that has some, and after `start`."""
        if self._loop is None or isinstance(self._loop, Awaiting):
            raise AssertionError("an app without async handlers has no loop that always runs")
        return self._loop

    def close(self) -> None:
        """Run the stop hooks, if the start hooks have run."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        for function in self._hooks().stop if self._problem is None else ():
            _call_stop_hook(loop, function)
        loop.close()

    def _make_loop(self) -> "LoopThread | Awaiting":
        if not self._has_async:
            return Awaiting()
        from unpoison.workers.tasks import LoopThread  # noqa: PLC0415 - asyncio takes 60 ms to import

        return LoopThread()

    def _run_start_hooks(self, hooks: WorkerHooks, loop: "LoopThread | Awaiting") -> None:
        try:
            for function in hooks.start:
                loop.call(function)
        except Exception as error:  # user code
            name, text, _ = describe(error)
            self._problem = ConfigError(
                f"on_worker_start raised {name}: {text}. No message was started. Fix it, then start this consumer again."
            )
            self._problem.__cause__ = error


def _call_stop_hook(loop: "LoopThread | Awaiting", function: Callable[[], Any]) -> None:
    try:
        loop.call(function)
    except Exception as error:  # user code
        log.exception(
            "on_worker_stop raised %s. Messages are not affected; what it was to close may be left open.", type(error).__name__
        )
