"""An app on Kafka with a message that takes its time: others wait behind it."""

import os
import time

from unpoison import App

app = App(os.environ["LOG_URL"])


@app.consumer("events", concurrency=1)
def handle(body: str) -> None:
    time.sleep(float(body))
