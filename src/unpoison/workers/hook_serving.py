"""How are `on_dlq` and `on_retry` called in a process of their own, where they can neither stop nor hurt any message?"""

from datetime import timedelta

from unpoison.errors import RemoteFailure
from unpoison.failure import describe
from unpoison.handler import PoisonPillHandler
from unpoison.registration import Registration
from unpoison.workers import wire
from unpoison.workers.child import Place, serve, settle_in
from unpoison.workers.forked import leave
from unpoison.workers.hooks import WorkerHooks


def become_hook_worker(place: Place, registration: Registration, hooks: WorkerHooks, consumer: int) -> None:
    """The life of a worker for hooks; never returns. It is a worker like the others: what they opened, hooks may use too."""
    status = 1
    try:
        settle_in(place, consumer, None)
        status = serve(place, hooks, lambda: _call_all(place, registration.call.handler))
    finally:
        leave(status)


def _call_all(place: Place, handler: PoisonPillHandler) -> None:
    while (received := wire.receive(place.sock, wire.to_worker)) is not None and isinstance(received[0], wire.Hook):
        _call(place, handler, received[0])
        wire.send(place.sock, wire.Ended(0))


def _call(place: Place, handler: PoisonPillHandler, hook: wire.Hook) -> None:
    failure = hook.failure
    try:
        if hook.delay is not None and handler.on_retry:
            handler.on_retry(hook.message, hook.metadata, timedelta(seconds=hook.delay))
        elif hook.delay is None and handler.on_dlq:
            handler.on_dlq(hook.message, hook.metadata, RemoteFailure(failure.type_name, failure.text, failure.traceback))
    except BaseException as error:  # a hook is user code: it is reported and changes nothing
        name, text, _ = describe(error)
        wire.send(place.sock, wire.HookFailed(hook.message.id, f"{name}: {text}"))
