"""Runs the consumer of a web application, as a process beside it.

The process is the same as `unpoison run` starts: requests and messages do not share an interpreter, so a message cannot hurt the
application. The two hold the ends of a socket; when the application ends, however it ends, the consumer notices and drains. If
the consumer ends on its own, it is started again.
"""

import logging
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from unpoison.decide.options import Settings
from unpoison.workers.template_client import environment_below

log = logging.getLogger("unpoison")

START_AGAIN = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before the consumer is started again after it ended on its own; the last one repeats."""

CALM = 60.0
"""Seconds after which an end no longer counts as one in a row."""


class Companion:
    """The consumer process of an application."""

    def __init__(self, reference: str, settings: Settings) -> None:
        self._reference, self._grace = reference, settings.grace
        self._url = settings.url if settings.url.startswith("sqlite:") else ""  # `ps` shows it; others hold passwords
        self._stopping = threading.Event()
        self._process, self._line = self._start()
        self._thread = threading.Thread(target=self._keep_alive, name="unpoison-companion", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have it drain, and wait until it has ended."""
        self._stopping.set()
        self._line.close()
        try:
            self._process.wait(self._grace + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "unpoison.programs.companion_main", str(theirs.fileno()), self._reference, self._url]
            given: dict[str, Any] = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL, "env": environment_below()}
            process = subprocess.Popen(command, **given)  # noqa: S603 - our own module
        return process, ours

    def _keep_alive(self) -> None:
        in_a_row, born = 0, time.monotonic()
        while not self._stopping.is_set():
            status = self._process.wait()
            if self._stopping.is_set():
                return
            in_a_row = 0 if time.monotonic() - born > CALM else in_a_row
            pause = START_AGAIN[min(in_a_row, len(START_AGAIN) - 1)]
            log.error(
                "The consumer process of %r ended with status %d; starting it again in %g s.", self._reference, status, pause
            )
            in_a_row += 1
            if self._stopping.wait(pause):
                return
            self._line.close()
            born = time.monotonic()
            self._process, self._line = self._start()
