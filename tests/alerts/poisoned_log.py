"""An app on Kafka with a message that takes its time: others wait behind it, one by one."""

import os
import time

from unpoison import App

app = App(os.environ["LOG_URL"], prefetch=1)


@app.consumer("events", concurrency=1)
def handle(body: str) -> None:
    time.sleep(float(body))
