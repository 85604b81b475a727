"""What do handlers that run in the consumer's own process need around them? `on_worker_start` and `on_worker_stop`, once each.

This process is then the worker of all its sources: the hooks run before the first message of any of them and after the last.
Async hooks run on the loop of the app's async handlers, so that what they open can be used there.
"""

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from unpoison.errors import ConfigError
from unpoison.failure import describe
from unpoison.workers.hooks import CLOSING, WorkerHooks

if TYPE_CHECKING:
    from unpoison.workers.tasks import LoopThread

log = logging.getLogger("unpoison")


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

    def loop_thread(self) -> "LoopThread":
        """The loop of everything async, made when it is first needed."""
        with self._lock:
            if self._loop is None:
                from unpoison.workers.tasks import LoopThread  # noqa: PLC0415 - asyncio takes 60 ms to import

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
