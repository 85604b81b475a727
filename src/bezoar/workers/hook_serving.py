"""How are `on_dlq` and `on_retry` called in a process of their own, where they can neither stop nor hurt any message?"""

import os
from datetime import timedelta

from bezoar.errors import RemoteFailure
from bezoar.failure import describe
from bezoar.handler import PoisonPillHandler
from bezoar.registration import Registration
from bezoar.workers import wire
from bezoar.workers.child import Place, settle_in


def become_hook_worker(place: Place, registration: Registration, consumer: int) -> None:
    """The life of a worker for hooks; never returns."""
    try:
        settle_in(place, consumer, None)
        wire.send(place.sock, wire.Ready(os.getpid()))
        while (received := wire.receive(place.sock, wire.to_worker)) is not None and isinstance(received[0], wire.Hook):
            _call(place, registration.call.handler, received[0])
            wire.send(place.sock, wire.Ended(0))
    finally:
        os._exit(0)


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
