"""Calls `on_dlq` and `on_retry` so that they cannot change what was decided, and has the spans of verdicts made.

After the verdict is stored, at most once each and one at a time: in a thread of this process, or in a worker process of their own
where handlers are isolated. A hook that raises, crashes or hangs is reported and changes nothing. It can hold up later hooks, but
no message.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unpoison.errors import UnpoisonError
from unpoison.model import verdict
from unpoison.model.events import fields
from unpoison.reporting.observer import Event
from unpoison.tracing.judged import Judged
from unpoison.tracing.spans import Tracing
from unpoison.tracing.verdicts import judged
from unpoison.tracing.verdicts import told as making_spans
from unpoison.worker import wire
from unpoison.worker.call import CLOSING, Awaiting, call_hook
from unpoison.workers.interface import readable
from unpoison.workers.pooled_worker import GONE_WITHIN, WorkerProcess

if TYPE_CHECKING:
    from unpoison.decide.policy import PoisonPillHandler
    from unpoison.workers.template_client import Template

log = logging.getLogger("unpoison")

HOOK_LIMIT = 30.0
"""Seconds that an isolated hook may take."""

MOST_WAITING = 10_000
"""Verdicts that wait for their spans. Those with a hook are all kept."""

LEAVE_WITHIN = 1.0
"""Seconds that the process of isolated hooks gets to run on_worker_stop."""


class _Told(NamedTuple):
    event: Event
    is_called: bool
    """Whether there is a hook for it."""
    judged: Judged | None


class HookCaller:
    """Calls the hooks of one consumer, one after the other, in a thread that starts with the first of them."""

    def __init__(self, *, has_on_retry: bool, has_on_dlq: bool, is_traced: Callable[[], bool] = lambda: False) -> None:
        self._has = {verdict.Retry: has_on_retry, verdict.DeadLetter: has_on_dlq}
        self._is_traced = is_traced
        self._queue: queue.SimpleQueue[_Told | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._drops_spans = False

    def call(self, event: Event, letter_id: str | None = None) -> None:
        """Have the hook called that belongs to this verdict, if there is one, and have its spans made, if there is tracing."""
        is_called, is_traced = self._has.get(type(event.ruling.verdict), False), self._is_traced()
        if not is_called and (not is_traced or self._is_full()):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="unpoison-hooks", daemon=True)
            self._thread.start()
        self._queue.put(_Told(event, is_called, judged(event, letter_id, time.time_ns()) if is_traced else None))

    def _is_full(self) -> bool:
        """Failures that come faster than spans are made must not fill the memory."""
        if self._queue.qsize() < MOST_WAITING:
            return False
        if not self._drops_spans:
            self._drops_spans = True
            log.warning(
                "Messages fail faster than spans can be made of it, so spans of some retries and dead letters are missing. This "
                "is logged once.",
                extra=fields("spans-dropped"),
            )
        return True

    def close(self) -> None:
        """Let the hooks that wait finish, for a moment."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSING)

    def _serve(self) -> None:
        raise NotImplementedError

    def _hooks(self) -> Iterator[tuple[Event, wire.Hook]]:
        while (told := self._queue.get()) is not None:
            event = told.event
            message, ruled = event.delivery.message, event.ruling.verdict
            if not told.is_called:
                message = msgspec.structs.replace(message, body=b"")
            delay = ruled.after.total_seconds() if isinstance(ruled, verdict.Retry) else None
            yield event, wire.Hook(message, event.metadata, event.failure, delay, told.is_called, told.judged)


class Hooks(HookCaller):
    """Calls the hooks of one consumer in this process."""

    def __init__(self, handler: "PoisonPillHandler", tracing: Tracing | None = None) -> None:
        has_on_retry, has_on_dlq = handler.on_retry is not None, handler.on_dlq is not None
        super().__init__(has_on_retry=has_on_retry, has_on_dlq=has_on_dlq, is_traced=lambda: tracing is not None)
        self._handler, self._awaiting, self._tracing = handler, Awaiting(), tracing

    def _serve(self) -> None:
        for event, hook in self._hooks():
            try:
                with making_spans(self._tracing, hook.message, hook.failure, hook.judged):
                    call_hook(self._handler, hook, self._awaiting, event.exception)
            except BaseException as error:  # a hook is user code; it must not end this thread
                kind = type(error).__name__
                log.exception("A hook for message %r raised %s; the verdict stands.", hook.message.id, kind, extra=_told(hook))
        self._awaiting.close()


class IsolatedHooks(HookCaller):
    """Calls the hooks of one consumer in another process."""

    def __init__(self, consumer: wire.Consumer, template: "Template", is_traced: Callable[[], bool] = lambda: False) -> None:
        super().__init__(has_on_retry=consumer.has_on_retry, has_on_dlq=consumer.has_on_dlq, is_traced=is_traced)
        self._consumer, self._template = consumer, template
        self._process: WorkerProcess | None = None
        self._is_closing = False

    def close(self) -> None:
        super().close()
        if self._thread is not None and self._thread.is_alive():
            self._is_closing = True
            if (process := self._process) is not None:
                with suppress(OSError):  # it may be gone by now
                    process.kill()
            self._thread.join(GONE_WITHIN)

    def _serve(self) -> None:
        """The only thread that has to do with the process of the hooks, but for ending it at last."""
        for _, hook in self._hooks():
            try:
                problem = "the consumer stops" if self._is_closing else self._call(hook)
            except (OSError, UnpoisonError) as error:
                problem = f"its process could not be had ({error})"
            if problem:
                log.error("A hook for message %r failed: %s. The verdict stands.", hook.message.id, problem, extra=_told(hook))
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
                if isinstance(said, wire.Broken):
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


def _told(hook: wire.Hook) -> dict[str, Any]:
    name = "on_dlq" if hook.delay is None else "on_retry"
    return fields("hook-failed", hook=name, source=hook.message.source, message_id=hook.message.id)
