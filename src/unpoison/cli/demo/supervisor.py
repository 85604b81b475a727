"""Who starts a consumer again when it is killed? A small supervisor, such as systemd or a container platform would be.

The same one looks after unpoison's consumer and after the plain loop, with the same limit.
"""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_RESTARTS = 5


@dataclass(frozen=True, slots=True)
class Death:
    """A process that did not end in good order: when, and with which status (below zero: the signal)."""

    at: float
    status: int


class Supervised:
    """One program, started again at once whenever it dies, but only so often."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, dict(environment), log
        self.deaths: list[Death] = []
        self.restarts = 0
        self.is_over = False
        self._start()

    @property
    def gave_up(self) -> bool:
        """It died once more than it may be started again."""
        return len(self.deaths) > self.restarts

    def look(self) -> None:
        """Start it again if it died."""
        if self.is_over or self._process.poll() is None:
            return
        os.close(self._ended)
        status = self._process.returncode
        if status != 0:
            self.deaths.append(Death(time.time(), status))
        self.is_over = status == 0 or self.restarts >= MOST_RESTARTS
        if not self.is_over:
            self.restarts += 1
            self._start()

    def stop(self) -> None:
        """End it, and what it started with it: workers die with their consumer."""
        if not self.is_over:
            self._process.kill()
            self._process.wait()
            os.close(self._ended)
            self.is_over = True

    def _start(self) -> None:
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then ends what it started.
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self._ended = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        """Readable once the process has ended."""
        return self._ended


def wait(programs: Sequence[Supervised], seconds: float) -> None:
    """Sleep so long, but wake at once when one of them ends."""
    select.select([program for program in programs if not program.is_over], [], [], seconds)
    for program in programs:
        program.look()
