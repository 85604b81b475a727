"""The app of most scenes: its handler writes its start down, does what the body says, and writes down that it is done."""

from pathlib import Path
from typing import Any

from unpoison.app import App
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing.isolation import plan
from unpoison.testing.isolation.deeds import Deeds
from unpoison.testing.isolation.diary import Diary

scene = plan.current()
diary = Diary(Path(scene.folder))
deeds = Deeds(diary)
app = App(scene.url, **scene.settings)


def handle(payload: dict[str, Any], delivery: Delivery) -> None:
    diary.start(delivery)
    deeds.commit(payload, delivery.id)
    diary.write("done", delivery.id)


async def handle_async(payload: dict[str, Any], delivery: Delivery) -> None:
    diary.start(delivery)
    await deeds.commit_async(payload, delivery.id)
    diary.write("done", delivery.id)


options: dict[str, Any] = {"backoff": Backoff.fixed(scene.also.get("delay", 0.0)), **scene.options}
for source in scene.also.get("sources", [plan.SOURCE]):
    app.consumer(source, **options)(handle_async if scene.style == "async" else handle)
