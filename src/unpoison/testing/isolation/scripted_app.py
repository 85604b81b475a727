"""The app of most scenes: its handler writes its start down, does what the body says, and writes down that it is done.

The plan of the scene says how it handles (`style`), and what happens while it is imported (`also`).
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unpoison.app import App
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing.isolation.diary import SOURCE, Diary, current_plan
from unpoison.testing.isolation.scripted_actions import ScriptedActions

scene = current_plan()
diary = Diary(Path(scene.folder))
actions = ScriptedActions(diary)
app = App(scene.url, **scene.settings)


def handle(payload: dict[str, Any], delivery: Delivery) -> None:
    diary.start(delivery)
    actions.run(payload, delivery.id)
    diary.write("done", delivery.id)


async def handle_async(payload: dict[str, Any], delivery: Delivery) -> None:
    diary.start(delivery)
    await actions.run_async(payload, delivery.id)
    diary.write("done", delivery.id)


def handle_raw(body: bytes, delivery: Delivery) -> None:
    """Takes bodies as they are: decoding large ones would take longer than everything that is to be seen."""
    diary.write("start", delivery.id, note=str(len(body)))
    diary.write("done", delivery.id)


thread = threading.Thread(target=threading.Event().wait, name="the-thread-of-the-shop", daemon=True)


def handle_beside_thread(payload: dict[str, Any], delivery: Delivery) -> None:
    """In an app that started a thread on import, as some clients do. The thread would not survive a fork."""
    diary.write("threads", note="alive" if thread in threading.enumerate() else "lost")
    handle(payload, delivery)


def misbehave(how: str | None, why: str) -> None:
    """What an import or a hook may end in; `deploy` only once a gate was made, as by half of a new version."""
    match how:
        case "raise":
            raise RuntimeError(why)
        case "exit":
            sys.exit(3)
        case "crash":
            ctypes.string_at(0)
        case "hang":
            signal.pause()
        case "leave":
            os._exit(3)
        case "deploy" if diary.gate("broken").exists():
            raise RuntimeError("half of the new version is there")


HANDLERS: dict[str, Callable[..., Any]] = {
    "sync": handle,
    "threads": handle,
    "async": handle_async,
    "raw": handle_raw,
    "beside thread": handle_beside_thread,
}
without_control = {"breaker": None, "budget": None, "admission": None}  # scenes are often about many messages that fail alike
options: dict[str, Any] = {"backoff": Backoff.fixed(scene.also.get("delay", 0.0)), **without_control, **scene.options}
for source in scene.also.get("sources", [SOURCE]):
    app.consumer(source, **options)(HANDLERS[scene.style])
if scene.style == "beside thread":
    thread.start()
misbehave(scene.also.get("import"), "the settings are missing")
