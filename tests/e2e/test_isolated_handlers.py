"""Handlers in worker processes whose result says that their work was not done."""

from tests.e2e.command_line import unpoison
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
    assert "never awaited" not in ended.err
    assert "never to be seen" not in ended.text + ended.err
