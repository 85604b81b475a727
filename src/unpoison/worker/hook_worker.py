"""Calls `on_dlq` and `on_retry` in a process of their own, where they can neither stop nor hurt any message."""

from unpoison.decide.policy import PoisonPillHandler
from unpoison.errors import RemoteFailure
from unpoison.model.failure import describe
from unpoison.worker import wire
from unpoison.worker.call import Awaiting, Registration
from unpoison.worker.fork_guard import leave
from unpoison.worker.hooks import WorkerHooks
from unpoison.worker.worker_process import WorkerFds, prepare_process, serve


def become_hook_worker(fds: WorkerFds, registration: Registration, hooks: WorkerHooks, consumer: int) -> None:
    """The life of a worker for hooks; never returns. It is a worker like the others: what they opened, hooks may use too."""
    status = 1
    try:
        prepare_process(fds, consumer, None)
        awaiting = Awaiting()
        status = serve(fds, hooks, lambda: _call_all(fds, registration.call.handler, awaiting), awaiting)
    finally:
        leave(status)


def _call_all(fds: WorkerFds, handler: PoisonPillHandler, awaiting: Awaiting) -> None:
    while (received := wire.receive(fds.sock, wire.to_worker)) is not None and isinstance(received[0], wire.Hook):
        _call(fds, handler, received[0], awaiting)
        wire.send(fds.sock, wire.Ended(0))


def _call(fds: WorkerFds, handler: PoisonPillHandler, hook: wire.Hook, awaiting: Awaiting) -> None:
    failure = hook.failure
    try:
        if hook.delay is not None and handler.on_retry:
            awaiting.call(handler.on_retry, hook.message, hook.metadata, hook.delay)
        elif hook.delay is None and handler.on_dlq:
            remote = RemoteFailure(failure.type_name, failure.text, failure.traceback)
            awaiting.call(handler.on_dlq, hook.message, hook.metadata, remote)
    except BaseException as error:  # a hook is user code: it is reported and changes nothing
        name, text, _ = describe(error)
        wire.send(fds.sock, wire.HookFailed(hook.message.id, f"{name}: {text}"))
