"""An app that starts a thread while it is imported, as some clients do. The thread would not survive a fork."""

import threading
from typing import Any

from unpoison.app import App
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing.isolation.plan import SOURCE
from unpoison.testing.isolation.poisons import diary, handle, scene

app = App(scene.url, **scene.settings)
thread = threading.Thread(target=threading.Event().wait, name="the-thread-of-the-shop", daemon=True)
thread.start()


@app.consumer(SOURCE, backoff=Backoff.immediate(), **scene.options)
def handle_with_thread(payload: dict[str, Any], delivery: Delivery) -> None:
    diary.write("threads", note="alive" if _is_running(thread) else "lost")
    handle(payload, delivery)


def _is_running(one: threading.Thread) -> bool:
    return one in threading.enumerate()
