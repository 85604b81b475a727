"""An app that takes bodies as they are: decoding large ones would take longer than everything that is to be seen."""

from unpoison.app import App
from unpoison.model.message import Delivery
from unpoison.testing.isolation.plan import SOURCE
from unpoison.testing.isolation.poisons import diary, scene

app = App(scene.url, **scene.settings)


@app.consumer(SOURCE, **scene.options)
def handle(body: bytes, delivery: Delivery) -> None:
    diary.write("start", delivery.id, note=str(len(body)))
    diary.write("done", delivery.id)
