"""Which message is a handler working on, right here and now? And how do its log lines say so?

A worker that runs one message at a time answers for its whole process, from the marks that it writes anyway: so lines of threads
that the handler has started have the message too, and no message costs anything. Where several run at once, in threads or as
tasks, each has a context of its own (`in_context`), which tasks inherit.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from unpoison.model.message import Delivery


class CurrentMessage(NamedTuple):
    """The message that is being handled."""

    id: str
    source: str
    attempt: int


in_context: ContextVar[Delivery | None] = ContextVar("unpoison_message", default=None)
"""What runs in this thread or task."""

_in_process: list[Callable[[], CurrentMessage | None]] = []
"""Empty, or what tells which message this process runs."""


@contextmanager
def answering_for_process(running: Callable[[], CurrentMessage | None]) -> Iterator[None]:
    """Meanwhile this process runs one message at a time, and `running` knows which."""
    _in_process[:] = [running]
    try:
        yield
    finally:
        _in_process.clear()


def current_message() -> CurrentMessage | None:
    """The message that is being handled here: its id, source and attempt. None outside of a handler.

    Known in the handler, in tasks that it starts, and in threads that it starts where its worker runs one message at a time.
    """
    delivery = in_context.get()
    if delivery is not None:
        return CurrentMessage(delivery.id, delivery.source, delivery.attempt)
    return next((running() for running in _in_process), None)


class MessageFields(logging.Filter):
    """Gives log lines of handlers the fields `message_id`, `source` and `attempt`. Attach it to a log handler, not to a logger.

    Fields that a line has already stay as they are, and so do unpoison's own lines. Lines outside of a message get no fields, or
    the value of `otherwise`: a format like "%(message_id)s" needs one.
    """

    def __init__(self, otherwise: object = None) -> None:
        super().__init__()
        self._otherwise = otherwise

    def filter(self, record: logging.LogRecord) -> bool:
        current = None if is_ours(record) else current_message()
        if current is not None:
            self._add(record, message_id=current.id, source=current.source, attempt=current.attempt)
        elif self._otherwise is not None:
            self._add(record, message_id=self._otherwise, source=self._otherwise, attempt=self._otherwise)
        return True

    @staticmethod
    def _add(record: logging.LogRecord, **found: object) -> None:
        for name, value in found.items():
            vars(record).setdefault(name, value)


def is_ours(record: logging.LogRecord) -> bool:
    """Whether unpoison itself tells it."""
    return record.name.partition(".")[0] == "unpoison"
