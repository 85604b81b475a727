"""A consumer in a process of its own, for measuring how soon it wakes up: each handler writes down when it started.

The app is at the top of the module, so that isolated workers can import it.
"""

import os
import time
from pathlib import Path
from typing import Any

from unpoison import App

app = App()


@app.consumer("orders", isolation=os.environ["BENCH_ISOLATION"])
def handle(_message: dict[str, Any]) -> None:
    started = time.monotonic_ns()
    with Path(os.environ["BENCH_STARTS"]).open("wb", buffering=0) as starts:
        starts.write(b"%d\n" % started)


if __name__ == "__main__":
    app.run()
