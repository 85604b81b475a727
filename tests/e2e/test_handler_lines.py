"""Do log lines of handlers say which message they are about, wherever in a worker process they come from?"""

import json
import subprocess
import sys

import pytest

from tests.e2e.command_line import LIMIT, unpoison

SHOP = """
import asyncio, logging, logging.config, sys, threading
from concurrent.futures import ThreadPoolExecutor

from unpoison import App, Backoff, current_message

app = App("sqlite:///shop.db")
log = logging.getLogger("shop")


@app.on_worker_start
def start():
    assert current_message() is None
    logging.getLogger("shop").info("started")


@app.consumer("orders", concurrency=1, backoff=Backoff.immediate(), max_attempts=2)
def ship(n: int) -> None:
    log.info("begin %s", n)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: log.info("beside %s", n), range(2)))
    assert current_message() == (f"orders-{n}", "orders", current_message().attempt)
    if n == 3:
        raise ConnectionError


async def inner(n):
    await asyncio.sleep(0)
    log.info("task %s", n)


@app.consumer("emails")
async def send(n: int) -> None:
    log.info("begin %s", n)
    await asyncio.gather(inner(n), asyncio.create_task(inner(n)))
    await asyncio.to_thread(log.info, "thread %s", n)


at_once = threading.Barrier(3)


@app.consumer("images", threads=3, concurrency=3)
def draw(n: int) -> None:
    at_once.wait(20)
    log.info("begin %s", n)


if __name__ == "__main__":
    for source in ("orders", "emails", "images"):
        app.publish_many(source, [1, 2, 3], ids=[f"{source}-{n}" for n in (1, 2, 3)])
"""


def handled(tmp_path, *options, setup=""):
    (tmp_path / "shop.py").write_text(SHOP + setup)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=LIMIT)
    return unpoison("run", "shop:app", "--until-empty", *options, cwd=tmp_path).err


def test_every_line_of_a_handler_has_id_source_and_attempt(tmp_path):
    lines = [json.loads(line) for line in handled(tmp_path, "--log-format", "json").splitlines()]
    told = [line for line in lines if line["logger"] == "shop" and line["message"] != "started"]
    assert {(line["source"], line["message_id"], *line["message"].split()) for line in told} == {
        (source, f"{source}-{n}", what, n)
        for source, kinds in (("orders", ("begin", "beside")), ("emails", ("begin", "task", "thread")), ("images", ("begin",)))
        for n in "123"
        for what in kinds
    }
    assert [line["attempt"] for line in told if line["message_id"] == "orders-3" and "begin" in line["message"]] == [1, 2]
    assert {line["attempt"] for line in told if line["message_id"] != "orders-3"} == {1}
    assert not [line for line in lines if line["message"] == "started" and "message_id" in line]


def test_text_lines_show_them_too(tmp_path):
    told = handled(tmp_path)
    assert "info shop: beside 1 [source=orders message_id=orders-1 attempt=1]\n" in told
    assert "info shop: begin 3 [source=orders message_id=orders-3 attempt=2]\n" in told
    assert "info shop: thread 2 [source=emails message_id=emails-2 attempt=1]\n" in told
    assert "info shop: started\n" in told
    assert "is a dead letter after attempt 2. ConnectionError" in told
    assert "(transient; 2 of 2 attempts used) [" not in told  # unpoison's own lines name the message in words


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_logging_configuration_of_ones_own_uses_the_filter(tmp_path, form):
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"message": {"()": "unpoison.MessageFields", "otherwise": "-"}},
        "formatters": {"short": {"format": "%(message_id)s|%(source)s|%(attempt)s|%(message)s"}},
        "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "short", "filters": ["message"]}},
        "root": {"level": "INFO", "handlers": ["err"]},
    }
    told = handled(tmp_path, "--log-format", form, setup=f"logging.config.dictConfig({config!r})\n")
    assert "orders-1|orders|1|begin 1\n" in told
    assert "orders-3|orders|2|beside 3\n" in told
    assert "-|-|-|started\n" in told
