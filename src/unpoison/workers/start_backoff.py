"""Tries again when a worker cannot start, because `on_worker_start` raises, crashes or hangs.

No message is charged for it. It is said once, and workers are tried again until one starts.
"""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unpoison.decide.options import ConsumerOptions
    from unpoison.workers.pooled_worker import PooledWorker

log = logging.getLogger("unpoison")

START_AGAIN = (0.1, 1.0, 5.0)
"""Seconds before workers are tried again after one could not start; the last one repeats."""


class StartBackoff:
    """The starts of the workers of one source."""

    def __init__(self, options: "ConsumerOptions", limit: float) -> None:
        self._options, self._limit = options, limit
        self._rounds = 0
        self._again = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._again

    def worked(self) -> None:
        if self._rounds:
            log.warning("Workers for %r start again.", self._options.name, extra=self._fields("workers-start"))
        self._rounds, self._again = 0, 0.0

    def failed(self, worker: "PooledWorker") -> None:
        """This one ended before it was ready."""
        crash = worker.process.autopsy(None)
        self._wait(worker.problem or f"it ended ({crash.signal or f'exit code {crash.exit_code}'}) before it was ready")

    def impossible(self, error: Exception) -> None:
        """No process could be made: the template was killed and its app can no longer be imported, or the machine is full."""
        self._wait(str(error))

    def _wait(self, why: str) -> None:
        """Those that were started together fail alike and count as one try."""
        if not self.is_due():
            return
        self._again = time.monotonic() + START_AGAIN[min(self._rounds, len(START_AGAIN) - 1)]
        self._rounds += 1
        if self._rounds == 1:
            log.error(
                "A worker for %r could not start: %s. No message is charged for it; trying again until one starts.",
                self._options.name,
                why.rstrip("."),
                extra=self._fields("workers-do-not-start"),
            )

    def _fields(self, event: str) -> dict[str, str]:
        return {"event": event, "source": self._options.source}

    def hanging(self, workers: "Sequence[PooledWorker]") -> "Sequence[PooledWorker]":
        """Those that have been starting for too long."""
        late = [worker for worker in workers if not worker.ready and time.monotonic() - worker.process.born > self._limit]
        for worker in late:
            worker.problem = f"on_worker_start took more than {self._limit:g} s (start_timeout)"
        return late
