"""How does a promise start a consumer in a process of its own, again and again if need be, and hear what it says?"""

import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from unpoison.testing.isolation import tree
from unpoison.testing.isolation.consumer_main import LogLine
from unpoison.testing.isolation.diary import PATIENCE, wait_until
from unpoison.testing.isolation.plan import Plan


class ConsumerProcess:
    """A consumer with its template and workers. Leaving the block ends it and checks that no process is left."""

    def __init__(self, plan: Plan, *, until_empty: bool = False, prefix: Sequence[str] = ()) -> None:
        self._plan = plan
        self._log = Path(plan.folder) / f"log-{secrets.token_hex(4)}"
        arguments = ["--until-empty"] if until_empty else []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*prefix, sys.executable, "-m", "unpoison.testing.isolation.consumer_main", *arguments],
                env=plan.as_environment(),
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait(self, patience: float | None = PATIENCE) -> int:
        """Its exit code; below zero the signal that ended it."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The consumer did not end within {patience:g} s. Its log: {self.text()[-4000:]}") from None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """As a deploy does it."""
        self.send(signal.SIGTERM)
        assert self.wait() == 0, self.text()[-4000:]

    def is_running(self) -> bool:
        return self._process.poll() is None

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def log(self) -> list[LogLine]:
        """What it said; a line that is being written at this moment is left out."""
        lines = [line for line in self.text().splitlines() if line.startswith('{"level"') and line.endswith("}")]
        return [msgspec.json.decode(line, type=LogLine) for line in lines]

    def said(self, *words: str) -> list[LogLine]:
        return [line for line in self.log() if all(word in line.message for word in words)]

    def wait_for_line(self, *words: str) -> LogLine:
        wait_until(lambda: self.said(*words), lambda: f"Nothing was said about {words}: {self.text()[-4000:]}")
        return self.said(*words)[0]

    def workers(self) -> list[int]:
        return tree.workers_of(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.is_running():
            if kind is None:
                self.stop()
            else:
                self.send(signal.SIGKILL)
                self._process.wait(PATIENCE)


class Supervisor(threading.Thread):
    """Starts a consumer again at once whenever it ends, as systemd or Kubernetes do, until there is nothing to do or it is
    not wanted any more."""

    def __init__(self, plan: Plan, restarts: int, *, until_empty: bool = True) -> None:
        super().__init__(daemon=True)
        self._plan, self._restarts, self._until_empty = plan, restarts, until_empty
        self.consumers: list[ConsumerProcess] = []
        self.problem = ""
        self.is_wanted = True

    def run(self) -> None:
        try:
            self._supervise()
        except BaseException as error:  # told by the thread that waits
            self.problem = f"{type(error).__name__}: {error}"

    def finish(self) -> None:
        """Return once it has ended; what went wrong is raised here."""
        self.join()
        if self.problem:
            raise AssertionError(self.problem)

    def _supervise(self) -> None:
        while True:
            consumer = ConsumerProcess(self._plan, until_empty=self._until_empty)
            self.consumers.append(consumer)
            code = consumer.wait(PATIENCE if self._until_empty else None)
            if code == 0:
                if self._until_empty or not self.is_wanted:
                    return
                continue
            was_killed = code == -signal.SIGKILL or bool(consumer.said("was killed by SIGKILL before the app was ready"))
            if not was_killed or len(self.consumers) > self._restarts:
                how = "too often" if was_killed else f"with exit code {code}"
                raise AssertionError(f"The consumer ended {how}: {consumer.text()[-4000:]}")
