"""Handlers in worker processes whose result says that their work was not done."""

import subprocess

from tests.e2e.command_line import UNPOISON, environment, unpoison
from unpoison import App

SHOP = """
import functools
from unpoison import App

app = App("sqlite:///shop.db")

async def ship(order):
    print("never to be seen")

def each(order):
    yield order

@functools.wraps(ship)
def wrapper(order):
    return ship(order)

async def forgets_to_await(order):
    return ship(order)

app.consumer("sync")(wrapper)
app.consumer("generator")(lambda order: each(order))
app.consumer("threads", threads=2)(lambda order: ship(order))
app.consumer("async")(forgets_to_await)

@app.consumer("good")
def good(order):
    return {"sent": True}
"""


def test_a_handler_in_a_worker_process_that_returns_its_work_is_a_bug_and_not_done(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    sources = ["sync", "generator", "threads", "async"]
    for source in [*sources, "good"]:
        app.publish(source, {"id": 1})
    ended = unpoison("run", "shop:app", "--until-empty", "--json", cwd=tmp_path)
    letters = {source: app.dlq(source).peek() for source in [*sources, "good"]}
    app.close()
    assert letters.pop("good") == []
    for source in sources:
        (letter,) = letters[source]
        assert (letter.classification, letter.attempts) == ("bug", 1), source
        assert letter.error_type == "unpoison.errors.UnfinishedHandler"
        assert "its work is not done" in letter.error
    assert "RuntimeWarning" not in ended.err  # of a coroutine that was never awaited
    assert "never to be seen" not in ended.text + ended.err


HOOKED = """
import asyncio
from unpoison import App, PoisonPillHandler

app = App("sqlite:///shop.db")
pool = None

class Pool:
    def __init__(self):
        self.loop = asyncio.get_running_loop()

@app.on_worker_start
async def start():
    global pool
    await asyncio.sleep(0)
    pool = Pool()

@app.on_worker_stop
async def stop():
    await asyncio.sleep(0)
    print("closed on its loop", pool.loop is asyncio.get_running_loop(), flush=True)

async def on_dlq(message, metadata, exc):
    await asyncio.sleep(0)
    print("told on its loop", pool.loop is asyncio.get_running_loop(), flush=True)

@app.consumer("async", concurrency=1)
async def handle(order):
    print("handled on its loop", pool.loop is asyncio.get_running_loop(), flush=True)

@app.consumer("sync", concurrency=1, on_dlq=on_dlq)
def handle_sync(order):
    assert isinstance(pool, Pool)
    raise KeyError("a dead letter")
"""


def test_async_hooks_of_worker_processes_are_awaited_on_the_loop_of_their_handlers(tmp_path):
    (tmp_path / "shop.py").write_text(HOOKED)
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    for source in ("async", "sync"):
        app.publish(source, {"id": 1})
    ended = unpoison("run", "shop:app", "--until-empty", cwd=tmp_path)
    (letter,) = app.dlq("sync").peek()
    app.close()
    assert letter.error_type == "KeyError"
    assert "handled on its loop True" in ended.text
    assert "told on its loop True" in ended.text
    assert "closed on its loop True" in ended.text
    assert "loop False" not in ended.text
    assert "RuntimeWarning" not in ended.err  # of a coroutine that was never awaited


def test_an_async_start_hook_that_raises_is_said_and_charges_no_message(tmp_path):
    text = HOOKED.replace("await asyncio.sleep(0)\n    pool = Pool()", "raise ConnectionError('no pool')")
    (tmp_path / "shop.py").write_text(text)
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.publish("async", {"id": 1})
    with subprocess.Popen([*UNPOISON, "run", "shop:app"], cwd=tmp_path, stderr=subprocess.PIPE, env=environment()) as running:
        line = next(line for line in running.stderr if b"could not start" in line)
        running.terminate()
        running.communicate(timeout=60)
    assert b"on_worker_start raised ConnectionError: no pool" in line
    assert app.dlq("async").peek() == []
    assert app._broker().depth("async").ready == 1
    app.close()
