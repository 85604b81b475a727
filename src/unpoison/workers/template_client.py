"""Starts workers, through a template process.

The template has the app imported and forks a worker in a few milliseconds. If importing the app started threads, forking would be
unsafe: then each worker is a fresh interpreter that imports the app itself.
"""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unpoison.errors import ConfigError
from unpoison.reporting.log_lines import LogStyle
from unpoison.worker import marks, wire
from unpoison.workers import pooled_worker
from unpoison.workers.output import OutputRelay
from unpoison.workers.pooled_worker import WorkerProcess

if TYPE_CHECKING:
    from unpoison.decide.options import ConsumerOptions
    from unpoison.workers.pooled_worker import PooledWorker

_PR_SET_CHILD_SUBREAPER = 36

FORK_WITHIN = 5.0
"""Seconds in which the template must fork a worker; it takes milliseconds. A template that does not is stuck and is replaced."""

RENEWALS = 5
"""How often in a row the template may be killed before its consumer gives up."""


class Template:
    """The template of one app. Safe to use from several consumers' threads."""

    def __init__(self, reference: str, start_timeout: float, url: str = "", style: LogStyle | None = None) -> None:
        self.reference, self._start_timeout, self._style = reference, start_timeout, style
        self._url = url
        """Which broker the app has here, if that is known: a relative path to a file must not mean another file there."""
        self._relay = OutputRelay()
        self._lock = threading.Lock()
        self._numbers = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._is_importing, self._imported_at = False, time.monotonic()
        adopt_orphans()
        try:
            self.app = self._start()
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    @property
    def forks(self) -> bool:
        """False if workers are started as fresh interpreters, because importing the app started threads."""
        return not self.app.threads

    @property
    def imported_at(self) -> float:
        """When the app was last imported, by the monotonic clock; now, while it is. From any thread."""
        return time.monotonic() if self._is_importing else self._imported_at

    def problem(self) -> str:
        """Why it can start no worker now; empty if it can. From any thread."""
        process = self._process
        if self._is_importing or process is None:
            return f"{self.reference!r} is being imported again: the template process, which starts workers, had ended."
        state = "" if process.returncode is not None else pooled_worker.state_of(process.pid)
        if state in ("", "Z", "X"):
            return f"The template process of {self.reference!r}, which starts workers, has ended. Another one is started."
        if state in ("T", "t"):
            return (
                f"The template process of {self.reference!r}, which starts workers, was stopped (kill -CONT {process.pid} lets "
                f"it go on). Once a worker is needed, another one is started."
            )
        return ""

    def worker(self, consumer: wire.Consumer, inherited_fds: Sequence[int], *, for_hooks: bool = False) -> WorkerProcess:
        """A new worker for this consumer; it says by itself when it is ready."""
        with self._lock, pooled_worker.COLLECTING:
            self._numbers += 1
            fork = wire.Fork(consumer.options.source, self._numbers, for_hooks)
            for _ in range(RENEWALS):
                worker = self._worker(fork, consumer.options.lanes, inherited_fds)
                if worker is not None:
                    return worker
                self._renew()
            raise ConfigError(
                f"The template process for {self.reference!r} was killed {RENEWALS} times in a row. Find out what kills it, then "
                f"start the consumer again."
            )

    def revive(self) -> None:
        """If a handler has killed the template, start another one now: the next worker that dies must not wait for the import."""
        if self._process is not None and self._process.poll() is not None:
            with self._lock, pooled_worker.COLLECTING:
                if self._process.poll() is not None:  # another consumer's thread may have been quicker
                    self._renew()

    def _worker(self, fork: wire.Fork, lanes: int, inherited_fds: Sequence[int]) -> WorkerProcess | None:
        """None if the template is gone. What it was given is given up with it: it may have made a worker before it ended, and
        two workers must never share a socket."""
        ours, theirs = wire.pair()
        shared, stack, log = marks.create(lanes), os.memfd_create("unpoison-stack"), os.memfd_create("unpoison-log")
        out, err = self._relay.pipes()
        given = (theirs.fileno(), shared, stack, log, out, err, *inherited_fds)
        try:
            pid = self._forked(fork, given) if self.forks else self._started(fork, given)
            if pid is not None:
                return WorkerProcess(pid, ours, marks.Marks(shared, lanes), stack, log)
            ours.close()
            os.close(stack)
            os.close(log)
            return None
        finally:
            theirs.close()
            for descriptor in (shared, out, err):
                os.close(descriptor)

    def close(self) -> None:
        self._end()
        self._relay.close()

    def _end(self) -> None:
        if self._sock is not None:
            self._sock.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            pooled_worker.forget(self._process.pid)

    def _start(self) -> wire.Described:
        """Start the template and receive the description of the app. Whatever goes wrong there becomes one clear error."""
        self._is_importing = True
        try:
            return self._described()
        finally:
            self._is_importing, self._imported_at = False, time.monotonic()

    def _described(self) -> wire.Described:
        ours, theirs = wire.pair()
        with pooled_worker.COLLECTING:
            self._process = self._interpreter(theirs)
            pooled_worker.know(self._process.pid)
        theirs.close()
        self._sock = ours
        ours.settimeout(self._start_timeout)
        try:
            received = wire.receive(ours, wire.from_template)
        except TimeoutError:
            self._process.kill()
            raise ConfigError(
                f"Importing {self.reference!r} took more than {self._start_timeout:g} s and was ended. Look for code at module "
                f"level that waits (a connection, an endless loop); move it into @app.on_worker_start. Or give it longer: "
                f"UNPOISON_START_TIMEOUT=120"
            ) from None
        ours.settimeout(FORK_WITHIN)
        if received is None:
            raise self._why_it_ended()
        if isinstance(received[0], wire.Broken):
            raise ImportFailed(received[0].text, received[0].traceback)
        if not isinstance(received[0], wire.Described):
            raise ConfigError(f"The template for {self.reference!r} answered {received[0]!r} instead of the app.")
        self._url = received[0].settings.url
        return received[0]

    def _interpreter(self, theirs: socket.socket, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            *_same_flags(),
            "-m",
            "unpoison.programs.template",
            str(theirs.fileno()),
            str(os.getpid()),  # a consumer that is killed while this starts is not its parent any more
            str(self._style or ""),
            self._url if self._url.startswith("sqlite:") else "",  # others may hold a password, which `ps` would show
            self.reference,
            *arguments,
        ]
        # Away from the consumer's process group: Ctrl-C is for the consumer, and would end this one with a traceback while it
        # imports. A worker has a session of its own anyway.
        where: dict[str, Any] = {"start_new_session": True} if arguments else {"process_group": 0}
        given: dict[str, Any] = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL, "env": environment_below()}
        return subprocess.Popen(command, **given, **where)  # noqa: S603 - our own module

    def _why_it_ended(self) -> ConfigError:
        status = self._process.wait() if self._process else 0
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        kind = TemplateKilled if status == -signal.SIGKILL else ConfigError
        module = self.reference.rpartition(":")[0]
        see = f"python {module}" if module.endswith(".py") else f"python -c 'import {module}'"
        return kind(
            f"Importing {self.reference!r} {how} before the app was ready. Code at module level runs in every process "
            f"and should only define things. To see what it does, run: {see}"
        )

    def _forked(self, fork: wire.Fork, given: tuple[int, ...]) -> int | None:
        try:
            if self._sock is not None:
                wire.send(self._sock, fork, given)
                received = wire.receive(self._sock, wire.from_template)
                if received is not None and isinstance(received[0], wire.Forked):
                    return received[0].pid or None  # 0 if the machine has no room for another process
        except OSError:
            pass  # gone, or standing still: some handler has killed or stopped it
        return None

    def _renew(self) -> None:
        """A new template does the same as one that a handler has killed; so does a third one if that was killed too."""
        self._end()
        with suppress(TemplateKilled):
            self.app = self._start()

    def _started(self, fork: wire.Fork, given: tuple[int, ...]) -> int:
        ours, theirs = wire.pair()
        process = self._interpreter(theirs, fork.source, str(fork.number), "hooks" if fork.for_hooks else "messages")
        theirs.close()
        wire.send(ours, fork, given)
        ours.close()
        process.returncode = 0  # its end is collected with its pid, by WorkerProcess; Popen must not wait for it as well
        return process.pid


class TemplateKilled(ConfigError):
    """The process that was importing the app was killed."""


class ImportFailed(ConfigError):
    """The app raised while it was imported."""

    def __init__(self, text: str, traceback: str) -> None:
        self.said, self.traceback = text, traceback
        super().__init__(f"{text}{_last_place(traceback)}")


def _last_place(traceback: str) -> str:
    """Where it happened, in the app's own code: where unpoison noticed it says nothing."""
    ours = str(Path(__file__).parents[1])
    places = [line.strip() for line in traceback.splitlines() if line.strip().startswith('File "') and ours not in line]
    return f" ({places[-1]})" if places else ""


def adopt_orphans() -> None:
    """Become the parent of every process below that loses its own: workers are forked twice to end up here."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def environment_below() -> dict[str, str]:
    """The environment for processes below this one. What systemd says is for the process that it has started, and no other is to
    answer in its name."""
    return {name: value for name, value in os.environ.items() if name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")}


def _same_flags() -> list[str]:
    """Options of this interpreter that its children need too (-X, -W, -I …)."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing
    return flags


log = logging.getLogger("unpoison")

START_AGAIN = (0.1, 1.0, 5.0)
"""Seconds before workers are tried again after one could not start; the last one repeats."""


class StartBackoff:
    """The starts of the workers of one source."""

    def __init__(self, options: "ConsumerOptions", limit: float) -> None:
        self._options, self._limit = options, limit
        self._rounds = 0
        self._again = 0.0
        self.why = ""
        """Why the last one could not start; empty if it could."""

    def is_due(self) -> bool:
        return time.monotonic() >= self._again

    def worked(self) -> None:
        if self._rounds:
            log.warning("Workers for %r start again.", self._options.name, extra=self._fields("workers-start"))
        self._rounds, self._again, self.why = 0, 0.0, ""

    def failed(self, worker: "PooledWorker") -> None:
        """This one ended before it was ready."""
        crash = worker.process.autopsy(None)
        self.wait(worker.problem or f"it ended ({crash.signal or f'exit code {crash.exit_code}'}) before it was ready")

    def wait(self, why: str) -> None:
        """Try again in a while. Those that were started together fail alike and count as one try."""
        if not self.is_due():
            return
        self._again = time.monotonic() + START_AGAIN[min(self._rounds, len(START_AGAIN) - 1)]
        self._rounds, self.why = self._rounds + 1, why
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
