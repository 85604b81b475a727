"""The template process: imports the app once and forks workers.

It is a fresh interpreter. It imports the app, describes it to the consumer as plain data, and from then on forks workers that
have the app already imported. It stays free of threads and opens no connections, so that forking is
safe and quick whatever the size of the consumer.

A worker is forked twice, so that the consumer becomes its parent: the template's end does not end it, and the consumer
learns first-hand how it ended.

    python -m unpoison.programs.template SOCKET_FD CONSUMER_PID LOG_STYLE URL module:app            the template
    python -m unpoison.programs.template SOCKET_FD CONSUMER_PID LOG_STYLE URL module:app SOURCE …   one worker, not forked

URL is that of the consumer's SQLite file, or empty: the working directory may be another one than where the app was made.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from unpoison.app import App
from unpoison.app_internals import consumers_of, settings_of, worker_hooks_of
from unpoison.decide.policy import PoisonPillHandler
from unpoison.errors import ConfigError
from unpoison.model.failure import describe
from unpoison.programs.importing import import_app
from unpoison.reporting import log_lines
from unpoison.reporting.log_lines import LogStyle
from unpoison.worker import wire
from unpoison.worker.call import Registration, WorkerHooks, failure_functions
from unpoison.worker.marks import Marks
from unpoison.worker.worker_process import WorkerFds, become_worker, die_with


def main() -> None:
    sock, consumer = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    die_with(consumer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # a stop of the whole group is the consumer's business
    if style := LogStyle.parsed(sys.argv[3]):
        log_lines.offer(style)
    url = sys.argv[4]
    sys.argv = [sys.argv[0], *sys.argv[5:]]
    try:
        app = import_app(sys.argv[1])
        if url and app.settings.url.startswith("sqlite:"):
            app.settings = replace(app.settings, url=url)
    except BaseException as error:  # whatever happens there, the consumer reports it in one clear message
        name, text, traceback = describe(error)
        said = text if isinstance(error, ConfigError) else f"{sys.argv[1]!r} could not be imported: {name}: {text}"
        wire.send(sock, wire.Broken(said, traceback))
        sys.exit(1)
    log_lines.replace_default()
    if len(sys.argv) > 2:
        _be_worker(sock, app, consumer, wire.Fork(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "hooks"))
    wire.send(sock, described(app))
    _fork_on_demand(sock, app, consumer)


def described(app: App) -> wire.Described:
    """The app as plain data."""
    hooks = worker_hooks_of(app)
    consumers = [_consumer(registration, hooks) for registration in consumers_of(app).values()]
    return wire.Described(settings_of(app), consumers, other_threads())


def _consumer(registration: Registration, hooks: WorkerHooks) -> wire.Consumer:
    call, handler = registration.call, registration.call.handler
    overridden = type(handler).should_retry is not PoisonPillHandler.should_retry
    return wire.Consumer(
        registration.options,
        needs_delivery=call.wants_delivery or overridden or bool(failure_functions(call, hooks)),
        has_on_retry=handler.on_retry is not None,
        has_on_dlq=handler.on_dlq is not None,
    )


def other_threads() -> list[str]:
    """The names of all threads but this one; those that Python does not know are named by the kernel."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return [name for number, name in known.items() if number != threading.get_native_id()]
    numbers = [int(task.name) for task in tasks.iterdir()]
    return [
        known.get(number) or (tasks / str(number) / "comm").read_text().strip()
        for number in numbers
        if number != threading.get_native_id()
    ]


def _fork_on_demand(sock: socket.socket, app: App, consumer: int) -> None:
    while (received := wire.receive(sock, wire.to_template)) is not None:
        fork, descriptors = received
        wire.send(sock, wire.Forked(_fork_twice(sock, app, consumer, fork, descriptors)))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_twice(sock: socket.socket, app: App, consumer: int, fork: wire.Fork, descriptors: list[int]) -> int:
    """Fork a worker whose parent is the consumer: the process in between ends at once. Returns the worker's pid."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # the app may have closed or replaced it
            stream.flush()  # what was printed during the import would come out of every worker again
    read_end, write_end = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        worker = os.fork()
        if worker:
            os.write(write_end, worker.to_bytes(8, "little"))
            os._exit(0)
        sock.close()
        os.close(write_end)
        os.close(read_end)
        while os.getppid() == between:  # until the process in between has ended
            os.sched_yield()
        _start(app, consumer, fork, descriptors)  # ends at once if the consumer is gone and this has another parent
    os.close(write_end)
    os.waitpid(between, 0)
    pid = int.from_bytes(os.read(read_end, 8), "little")
    os.close(read_end)
    return pid


def _be_worker(sock: socket.socket, app: App, consumer: int, fork: wire.Fork) -> None:
    """Started without forking: the descriptors come over the socket."""
    received = wire.receive(sock, wire.to_template)
    if received is None:
        sys.exit(0)
    sock.close()
    _start(app, consumer, fork, received[1])


def _start(app: App, consumer: int, fork: wire.Fork, descriptors: list[int]) -> Any:
    registration = consumers_of(app)[fork.source]
    talk, shared, stack, log, out, err, *inherited_fds = descriptors
    fds = WorkerFds(socket.socket(fileno=talk), Marks(shared, registration.options.lanes), stack, log, (out, err), inherited_fds)
    memory = None if fork.for_hooks else app.settings.worker_memory
    hooks, url = worker_hooks_of(app), app.settings.url
    become_worker(fds, registration, hooks, consumer, memory, url, for_hooks=fork.for_hooks)


if __name__ == "__main__":
    main()
