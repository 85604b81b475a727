"""The app of most scenes with all that can be hooked into it: worker start and stop, retries, dead letters, classifiers."""

from typing import Any

from unpoison.app import App
from unpoison.decide.policy import PoisonPillHandler, Policy
from unpoison.model.backoff import Backoff
from unpoison.model.message import Message, MessageMetadata
from unpoison.model.verdict import ErrorClassification
from unpoison.testing.isolation.diary import SOURCE
from unpoison.testing.isolation.scripted_app import diary, handle, misbehave, scene

app = App(scene.url, **scene.settings)


def do_harm(hook: str) -> None:
    """What the plan of the scene says about this hook."""
    misbehave(scene.also.get(hook), "the pool cannot be opened")


@app.on_worker_start
def on_worker_start() -> None:
    diary.write("worker-start")
    if not diary.gate("healed").exists():
        do_harm("start")


@app.on_worker_stop
def on_worker_stop() -> None:
    diary.write("worker-stop")
    do_harm("stop")


def on_retry(message: Message, metadata: MessageMetadata, delay: float) -> None:
    diary.write("on_retry", message.id, attempt=metadata.attempt, note=f"{delay:g}")
    do_harm("on_retry")


def on_dlq(message: Message, metadata: MessageMetadata, exc: BaseException) -> None:
    diary.write("on_dlq", message.id, attempt=metadata.attempt, note=f"{exc}; letters: {app.dlq(SOURCE).count()}")
    do_harm("on_dlq")


def classify(exc: BaseException) -> ErrorClassification | None:
    diary.write("classify", note=str(exc))
    do_harm("classify")
    return ErrorClassification.PERMANENT if "classify me" in str(exc) else None


class Careful(PoisonPillHandler):
    """Says no to what it is told to, and has a word on the classification."""

    def classify_error(self, exc: BaseException) -> ErrorClassification:
        diary.write("classify_error", note=str(exc))
        return ErrorClassification.INVALID if "of our own" in str(exc) else super().classify_error(exc)

    def should_retry(self, metadata: MessageMetadata, exc: BaseException) -> bool:
        diary.write("should_retry", metadata.message_id, attempt=metadata.attempt, note=str(exc))
        do_harm("should_retry")
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
