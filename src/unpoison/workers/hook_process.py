"""Calls hooks when handlers are isolated: in a worker process of their own, one at a time.

A hook that raises, crashes or hangs is reported and changes nothing; it can hold up later hooks, never a message.
"""

import logging
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from unpoison.errors import UnpoisonError
from unpoison.model import verdict
from unpoison.reporting.report import Event
from unpoison.worker import wire
from unpoison.workers.pooled_worker import GONE_WITHIN, WorkerProcess, readable

if TYPE_CHECKING:
    from unpoison.workers.template_client import Template

log = logging.getLogger("unpoison")

HOOK_LIMIT = 30.0
"""Seconds that a hook may take."""

CLOSING = 5.0
"""Seconds that the hooks still waiting get at the end."""

LEAVE_WITHIN = 1.0
"""Seconds that their process then gets to run on_worker_stop."""


class IsolatedHooks:
    """Calls the hooks of one consumer in another process."""

    def __init__(self, consumer: wire.Consumer, template: "Template") -> None:
        self._consumer, self._template = consumer, template
        self._queue: queue.SimpleQueue[wire.Hook | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: WorkerProcess | None = None
        self._is_closing = False

    def call(self, event: Event) -> None:
        """Have the hook called that belongs to this verdict, if there is one."""
        match event.ruling.verdict:
            case verdict.Retry(after) if self._consumer.has_on_retry:
                self._put(wire.Hook(event.delivery.message, event.metadata, event.failure, after.total_seconds()))
            case verdict.DeadLetter() if self._consumer.has_on_dlq:
                self._put(wire.Hook(event.delivery.message, event.metadata, event.failure, None))

    def close(self) -> None:
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(CLOSING)
        if self._thread.is_alive():
            self._is_closing = True
            if (process := self._process) is not None:
                with suppress(OSError):  # it may be gone by now
                    process.kill()
            self._thread.join(GONE_WITHIN)

    def _put(self, hook: wire.Hook) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="unpoison-hooks", daemon=True)
            self._thread.start()
        self._queue.put(hook)

    def _serve(self) -> None:
        """The only thread that has to do with the process of the hooks, but for ending it at last."""
        while (hook := self._queue.get()) is not None:
            try:
                problem = "the consumer stops" if self._is_closing else self._call(hook)
            except (OSError, UnpoisonError) as error:
                problem = f"its process could not be had ({error})"
            if problem:
                extra = {"event": "hook-failed", "source": hook.message.source, "message_id": hook.message.id}
                log.error("A hook for message %r failed: %s. The verdict stands.", hook.message.id, problem, extra=extra)
        if self._process is not None and self._process.tell(wire.Stop()) is wire.Sent.YES:
            self._process.is_gone(LEAVE_WITHIN)
        self._end()

    def _call(self, hook: wire.Hook) -> str:
        """Empty if the hook returned, else what went wrong."""
        if self._process is None:
            self._process = self._template.worker(self._consumer, (), for_hooks=True)
        process, until, raised = self._process, time.monotonic() + HOOK_LIMIT, ""
        process.tell(hook)
        while (left := until - time.monotonic()) > 0:
            readable((process.sock.fileno(), process.pidfd), left)
            for said in process.said():
                if isinstance(said, wire.HookFailed | wire.Broken):
                    raised = said.text
                elif isinstance(said, wire.Ended):
                    return raised
            if process.hung_up or process.is_gone():
                self._end()
                return raised or "it ended its process"
        self._end()
        return f"it took more than {HOOK_LIMIT:g} s"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.is_gone(GONE_WITHIN)
            self._process.close()
            self._process = None
