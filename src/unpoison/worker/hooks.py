"""Calls `on_dlq` and `on_retry` so that they cannot change what was decided.

After the verdict is stored, at most once each, in a thread of their own: a hook that fails is reported, one that hangs
holds up later hooks and no message.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from unpoison.errors import RemoteFailure
from unpoison.model import verdict
from unpoison.model.message import Message, MessageMetadata
from unpoison.reporting.report import Event
from unpoison.worker.call import Awaiting

if TYPE_CHECKING:
    from unpoison.decide.policy import PoisonPillHandler

log = logging.getLogger("unpoison")

CLOSING = 5.0
"""Seconds that hooks get to finish at the end."""


@dataclass(frozen=True, slots=True)
class WorkerHooks:
    """What runs in each worker before its first and after its last message."""

    start: Sequence[Callable[[], Any]] = ()
    stop: Sequence[Callable[[], Any]] = ()


class HookCaller(Protocol):
    """What calls the hooks of one consumer."""

    def call(self, event: Event) -> None:
        """Have the hook called that belongs to this verdict, if there is one."""

    def close(self) -> None:
        """Let the hooks that wait finish, for a moment."""


class Hooks:
    """Calls the hooks of one consumer."""

    def __init__(self, handler: "PoisonPillHandler") -> None:
        self._handler = handler
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awaiting = Awaiting()

    def call(self, event: Event) -> None:
        """Have the hook called that belongs to this verdict, if there is one."""
        hook = {verdict.Retry: self._handler.on_retry, verdict.DeadLetter: self._handler.on_dlq}.get(type(event.ruling.verdict))
        if hook is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="unpoison-hooks", daemon=True)
            self._thread.start()
        self._queue.put(event)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSING)

    def _serve(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._call(event.delivery.message, event.metadata, event)
            except BaseException as error:  # a hook is user code; it must not end this thread
                extra = {"event": "hook-failed", "source": event.delivery.source, "message_id": event.delivery.id}
                kind = type(error).__name__
                log.exception("A hook for message %r raised %s; the verdict stands.", event.delivery.id, kind, extra=extra)
        self._awaiting.close()

    def _call(self, message: Message, metadata: MessageMetadata, event: Event) -> None:
        failure = event.failure
        match event.ruling.verdict:
            case verdict.Retry(after) if self._handler.on_retry:
                self._awaiting.call(self._handler.on_retry, message, metadata, after.total_seconds())
            case verdict.DeadLetter() if self._handler.on_dlq:
                remote = RemoteFailure(failure.type_name, failure.text, failure.traceback)
                self._awaiting.call(self._handler.on_dlq, message, metadata, event.exception or remote)
