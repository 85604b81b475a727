"""How does a promise run an app beside itself, and hear what it says?"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from unpoison.app import App, make_metrics, runnable
from unpoison.flow.run import Run
from unpoison.reporting.report import Tally
from unpoison.testing.processes import PATIENCE

NOTHING_WRONG = ("retry", "dead", "discard", "finding", "takeover", "foreign-attempts", "budget")
"""Events about messages, about how a broker is set up, or about another consumer."""


class Running:
    """An app that consumes in a thread of this process, until it is stopped or the block ends."""

    def __init__(self, app: App, *, until_empty: bool = False) -> None:
        self.run = Run([runnable(app)], make_metrics=make_metrics)
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, args=(until_empty,), name="running-app", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.run.stop()
        if kind is None:
            self.wait()

    def wait(self) -> dict[str, Tally]:
        """Return once it has ended; what it raised is raised here."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise AssertionError(f"The app did not end within {PATIENCE:g} s.")
        if self._raised:
            raise self._raised[0]
        return self.run.tallies()

    def _serve(self, until_empty: bool) -> None:
        try:
            self.run.serve(until_empty=until_empty)
        except BaseException as error:  # raised by wait(), where the promise is checked
            self._raised.append(error)


def drained(app: App) -> dict[str, Tally]:
    """Consume until the app's sources are empty. Returns how many messages ended how."""
    with Running(app, until_empty=True) as running:
        return running.wait()


class Journal(logging.Handler):
    """What unpoison logs while the block lasts."""

    def __init__(self, **on: Callable[[], None]) -> None:
        """`on` maps kinds of events to what is called when one is logged."""
        super().__init__()
        self._on = on
        self._records: list[logging.LogRecord] = []
        self._told = threading.Condition()
        self._level = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        with self._told:
            self._records.append(record)
            self._told.notify_all()
        if call := self._on.get(getattr(record, "event", "")):
            call()

    def of(self, event: str) -> list[str]:
        """The lines about one kind of event ("pause", "dead" …)."""
        with self._told:
            return [record.getMessage() for record in self._records if getattr(record, "event", None) == event]

    def errors(self) -> list[str]:
        """The lines that say that something went wrong with unpoison or its broker, rather than with a message."""
        with self._told:
            return [
                record.getMessage()
                for record in self._records
                if record.levelno >= logging.WARNING and getattr(record, "event", None) not in NOTHING_WRONG
            ]

    def wait_for(self, event: str) -> None:
        with self._told:
            if not self._told.wait_for(
                lambda: any(getattr(record, "event", None) == event for record in self._records), PATIENCE
            ):
                raise AssertionError(f"Nothing was logged about {event!r} within {PATIENCE:g} s.")

    def __enter__(self) -> Self:
        log = logging.getLogger("unpoison")
        self._level = log.level
        log.setLevel(logging.DEBUG)
        log.addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        log = logging.getLogger("unpoison")
        log.removeHandler(self)
        log.setLevel(self._level)
