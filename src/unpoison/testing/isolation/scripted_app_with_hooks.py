"""The app of most scenes with all that can be hooked into it: worker start and stop, retries, dead letters, classifiers."""

import ctypes
import os
import signal
from typing import Any

from unpoison.app import App
from unpoison.decide.policy import PoisonPillHandler, Policy
from unpoison.model.backoff import Backoff
from unpoison.model.classification import ErrorClassification
from unpoison.model.message import Message, MessageMetadata
from unpoison.testing.isolation.plan import SOURCE
from unpoison.testing.isolation.scripted_app import diary, handle, scene

app = App(scene.url, **scene.settings)


def misbehave(how: str | None) -> None:
    match how:
        case "raise":
            raise RuntimeError("the pool cannot be opened")
        case "crash":
            ctypes.string_at(0)
        case "hang":
            signal.pause()
        case "leave":
            os._exit(3)


@app.on_worker_start
def on_worker_start() -> None:
    diary.write("worker-start")
    if not diary.gate("healed").exists():
        misbehave(scene.also.get("start"))


@app.on_worker_stop
def on_worker_stop() -> None:
    diary.write("worker-stop")
    misbehave(scene.also.get("stop"))


def on_retry(message: Message, metadata: MessageMetadata, delay: float) -> None:
    diary.write("on_retry", message.id, attempt=metadata.attempt, note=f"{delay:g}")
    misbehave(scene.also.get("on_retry"))


def on_dlq(message: Message, metadata: MessageMetadata, exc: BaseException) -> None:
    diary.write("on_dlq", message.id, attempt=metadata.attempt, note=f"{exc}; letters: {app.dlq(SOURCE).count()}")
    misbehave(scene.also.get("on_dlq"))


def classify(exc: BaseException) -> ErrorClassification | None:
    diary.write("classify", note=str(exc))
    misbehave(scene.also.get("classify"))
    return ErrorClassification.PERMANENT if "classify me" in str(exc) else None


class Careful(PoisonPillHandler):
    """Says no to what it is told to, and has a word on the classification."""

    def classify_error(self, exc: BaseException) -> ErrorClassification:
        diary.write("classify_error", note=str(exc))
        return ErrorClassification.INVALID if "of our own" in str(exc) else super().classify_error(exc)

    def should_retry(self, metadata: MessageMetadata, exc: BaseException) -> bool:
        diary.write("should_retry", metadata.message_id, attempt=metadata.attempt, note=str(exc))
        misbehave(scene.also.get("should_retry"))
        return "never again" not in str(exc)


options: dict[str, Any] = dict(scene.options)
handler = Careful(
    max_attempts=options.pop("max_attempts", 3),
    backoff=Backoff.immediate(),
    error_classifier=classify,
    policies={TimeoutError: Policy(max_attempts=1)},
    on_retry=on_retry,
    on_dlq=on_dlq,
)
app.consumer(SOURCE, handler=handler, **options)(handle)
