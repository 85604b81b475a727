"""The life of a worker process.

It calls `on_worker_start`, reports that it is ready, and then runs what it is given until it is told to stop or its consumer
is gone. `prepare_process` makes sure that its death costs one message and nothing else. A worker for hooks calls `on_dlq` and
`on_retry` instead, where they can neither stop nor hurt any message, and makes the spans of verdicts.
"""

import ctypes
import faulthandler
import gc
import io
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from unpoison.model.failure import describe
from unpoison.reporting import log_lines
from unpoison.tracing.spans import Tracing
from unpoison.tracing.verdicts import told
from unpoison.worker import batch_loop, wire
from unpoison.worker.call import Awaiting, Registration, WorkerHooks, call_hook, failure_functions, leave, note_copy
from unpoison.worker.marks import STACK_SIGNAL, Marks
from unpoison.worker.on_failure import FailureHooks, within_limit
from unpoison.worker.traced_call import traced

_PR_SET_PDEATHSIG = 1
_LINE_BUFFERED = 1
LOG_LINES = 50


@dataclass(frozen=True, slots=True)
class WorkerFds:
    """Everything a worker process is given: its socket, its shared memory, where its last stack and log lines and its output go,
    and the descriptors it inherits."""

    sock: socket.socket
    marks: Marks
    stack: int
    log: int
    output: tuple[int, int]
    inherited_fds: Sequence[int]


def become_worker(
    fds: WorkerFds,
    registration: Registration,
    hooks: WorkerHooks,
    consumer: int,
    memory: int | None,
    url: str,
    *,
    for_hooks: bool,
) -> None:
    """The life of a worker process; never returns. One for hooks is like the others: what they opened, hooks may use too."""
    status = 1
    try:
        prepare_process(fds, consumer, memory)
        awaiting = Awaiting()
        work = (
            partial(_call_hooks, fds, registration, awaiting)
            if for_hooks
            else partial(_run_messages, fds, registration, hooks, awaiting)
        )
        find = partial(Tracing.found, url, registration.options.source)
        status = serve(fds, hooks, work, awaiting, find)
    finally:
        leave(status)


def prepare_process(fds: WorkerFds, consumer: int, memory: int | None) -> None:
    """Make sure that this process cannot hurt others, cannot outlive its consumer, and leaves evidence when it dies."""
    if os.getsid(0) != os.getpid():  # one that was not forked has it already
        os.setsid()  # signals of the terminal stay away, and everything started from here can be killed together
    die_with(consumer)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A stop of the whole group is the consumer's business. No SIG_IGN: programs that the handler starts would inherit it.
        signal.signal(number, _not_our_signal)
        signal.siginterrupt(number, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing the core of a large worker would block its place for seconds
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # unlike RLIMIT_AS this lets reserved, unused space pass
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib is slower to import
        file.write("1000")  # when the machine runs out of memory, the kernel is to take a worker, not the consumer
    faulthandler.enable(fds.stack, all_threads=True)
    faulthandler.register(STACK_SIGNAL, fds.stack, all_threads=True)
    redirect_output(*fds.output)
    random.seed()
    os.register_at_fork(after_in_child=lambda: _left_the_worker(fds))
    gc.freeze()


def redirect_output(out: int, err: int) -> None:
    """Print into these from now on, each line at once: what waits in a buffer is lost when this process is killed."""
    for number, (stream, descriptor) in enumerate(((sys.stdout, out), (sys.stderr, err)), 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
        if isinstance(stream, io.TextIOWrapper):
            # On a terminal nothing puts lines together. With PYTHONUNBUFFERED, as containers have it, `print` would write a
            # line and its end one by one, and those of two workers would mix.
            stream.reconfigure(line_buffering=True, write_through=stream.write_through and not os.isatty(number))
    libc = ctypes.CDLL(None)
    with suppress(ValueError):  # a C library that has no such name
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)


def die_with(consumer: int) -> None:
    """Have the kernel end this process when its parent, the consumer, ends. Checked once more: it may be gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != consumer:
        os._exit(0)


def _not_our_signal(number: int, frame: object) -> None:
    """A stop reaches the whole group; the consumer decides what it means for workers."""


def _left_the_worker(fds: WorkerFds) -> None:
    """In a process that a handler forked: it must not act as the worker, nor hold its messages."""
    fds.sock.close()
    for descriptor in fds.inherited_fds:
        with suppress(OSError):
            os.close(descriptor)
    note_copy()


def serve(
    fds: WorkerFds,
    hooks: WorkerHooks,
    work: Callable[[Tracing | None], None],
    awaiting: Awaiting,
    find_tracing: Callable[[], Tracing | None] = lambda: None,
) -> int:
    """Between on_worker_start and on_worker_stop, do the work until it is over. Returns the exit code of this process.

    Async hooks run on the loop of `awaiting`, which is also that of async handlers. Whether the app has set up tracing is known
    once on_worker_start has run.
    """
    try:
        for function in hooks.start:
            awaiting.call(function)
    except BaseException as error:  # whatever it is, the consumer must learn why its workers do not start
        name, text, traceback = describe(error)
        wire.send(fds.sock, wire.Broken(f"on_worker_start raised {name}: {text}", traceback))
        return 1
    keep_last_lines(fds.log)
    tracing = find_tracing()
    wire.send(fds.sock, wire.Ready(tracing is not None))
    try:
        work(tracing)
    finally:
        for function in hooks.stop:
            with suppress(BaseException):
                awaiting.call(function)
        if tracing is not None:  # no atexit handler runs here
            tracing.flush()
    return 0


def _run_messages(
    fds: WorkerFds, registration: Registration, hooks: WorkerHooks, awaiting: Awaiting, tracing: Tracing | None
) -> None:
    """asyncio is imported only where tasks need it: it takes longer than all the rest."""
    options, call = registration.options, registration.call

    def tell(kind: str, problem: str, traceback: str, message_id: str) -> None:
        with suppress(OSError):  # a handler has closed the socket
            wire.send(fds.sock, wire.HookFailed(kind, problem, traceback, message_id))

    functions, limit, finish = failure_functions(call, hooks), options.limits.max_attempts, partial(awaiting.call, within_limit)
    for_failures = FailureHooks(functions, limit, finish, tell, fds.marks.hook_runs)
    given = (fds.sock, fds.marks, traced(call, tracing, is_async=options.is_async), for_failures)
    if not options.is_async and options.threads == 1:
        return batch_loop.serve_batches(*given)
    from unpoison.worker import concurrent_loop  # noqa: PLC0415

    if options.is_async:
        return concurrent_loop.serve_tasks(awaiting.loop(), *given)
    return concurrent_loop.serve_threads(*given)


def keep_last_lines(descriptor: int) -> None:
    """Called after on_worker_start, which may set logging up. Where it does not, lines still reach standard error."""
    log_lines.settle()
    logging.getLogger().addHandler(LastLines(descriptor))


class LastLines(logging.Handler):
    """Keeps the last log lines where the consumer finds them after this process is gone."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception), self._guard:
            line = f"{record.levelname} {record.name}: {record.getMessage()}"[:500]
            self._lines = [*self._lines, line.encode("utf-8", "replace")][-LOG_LINES:]
            text = b"\n".join(self._lines)
            os.pwrite(self._descriptor, len(text).to_bytes(8, "little") + text, 0)


def _call_hooks(fds: WorkerFds, registration: Registration, awaiting: Awaiting, tracing: Tracing | None) -> None:
    handler = registration.call.handler
    while (received := wire.receive(fds.sock, wire.to_worker)) is not None and isinstance(hook := received[0], wire.Hook):
        try:
            with told(tracing, hook.message, hook.failure, hook.judged):
                call_hook(handler, hook, awaiting)
        except BaseException as error:  # a hook is user code: it is reported and changes nothing
            name, text, _ = describe(error)
            wire.send(fds.sock, wire.Broken(f"{name}: {text}"))
        wire.send(fds.sock, wire.Ended(0))
