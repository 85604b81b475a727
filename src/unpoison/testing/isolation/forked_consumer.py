"""How does a promise start a real consumer process in a few milliseconds?

It is forked from the promise's own process, where everything is imported already, and its handlers run in threads. What depends
on isolated workers needs a `ConsumerProcess`, which costs a second of a processor.
"""

import logging
import os
import secrets
import signal
from functools import partial
from pathlib import Path

from unpoison.app_internals import runnable
from unpoison.flow.run import Run
from unpoison.testing.isolation.calling_app import app_of
from unpoison.testing.isolation.diary import PATIENCE, Plan
from unpoison.testing.isolation.processes import ConsumerProcess, LogLines
from unpoison.testing.processes import Child


class ForkedConsumer(ConsumerProcess):
    """A consumer of the calling app, as `ConsumerProcess` is one."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._log = Path(plan.folder) / f"log-{secrets.token_hex(4)}"
        self._log.touch()
        self._child = Child(partial(_consume, plan, self._log))
        self.pid = self._child.pid

    def wait(self, patience: float | None = PATIENCE) -> int:
        return self._child.wait()

    def send(self, number: signal.Signals) -> None:
        self._child.send(number)

    def is_running(self) -> bool:
        return self._child.is_running()

    def __exit__(self, *raised: object) -> None:
        if self.is_running():
            if raised[0] is None:
                self.stop()
            else:
                self.send(signal.SIGKILL)
        self._child.wait()


def _consume(plan: Plan, path: Path) -> None:
    """Until it is stopped. Signals are caught, since a forked process has but one thread, and this is its main one."""
    log = logging.getLogger("unpoison")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 2)
    log.handlers, log.propagate = [LogLines(descriptor)], False
    log.setLevel(logging.DEBUG)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Run([runnable(app_of(plan, isolation="thread"))]).serve()
