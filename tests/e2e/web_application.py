"""A web application that brings its consumer along: what tests/e2e/test_lifespan.py runs under uvicorn."""

import os
from pathlib import Path

from fastapi import FastAPI

from unpoison import App

jobs = App(os.environ["JOBS_URL"])
EFFECTS = Path(os.environ["EFFECTS"])


@jobs.consumer("orders", concurrency=1)
def ship(order: str) -> None:
    with EFFECTS.open("a") as effects:
        effects.write(f"{order} {os.getpid()} {os.getppid()}\n")


web = FastAPI(lifespan=jobs.lifespan)


@web.post("/orders/{name}")
async def order(name: str) -> dict[str, str]:
    return {"id": await jobs.publish_async("orders", name)}


@web.get("/pid")
def pid() -> int:
    return os.getpid()
