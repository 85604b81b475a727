"""Where does the asynchronous client run? On one event loop in one thread of this process, whoever calls."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop that runs for as long as the process does."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="unpoison-nats", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Have this done there; returns what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)


_lock = threading.Lock()
_threads: list[LoopThread] = []


def loop_thread() -> LoopThread:
    """The one of this process. A forked child inherits no thread and gets its own."""
    with _lock:
        if not _threads or _threads[-1].pid != os.getpid():
            _threads.append(LoopThread())
        return _threads[-1]
