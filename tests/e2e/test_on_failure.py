"""`on_failure` in real worker processes: Sentry gets its events before a worker is gone, and a bad hook hurts no message."""

import gzip
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest

from tests.e2e.command_line import LIMIT, unpoison

SHOP = """
import os, time
import sentry_sdk
from unpoison import App, Backoff

app = App("sqlite:///shop.db", recycle_messages=1)


@app.on_worker_start
def start_sentry():
    sentry_sdk.init(dsn="http://key@127.0.0.1:{port}/1", default_integrations=False, include_local_variables=True)


@app.on_failure
def report(message, metadata, error):
    with sentry_sdk.new_scope() as scope:
        scope.set_tags({{"message_id": message.id, "source": message.source, "attempt": metadata.attempt}})
        scope.capture_exception(error)
    sentry_sdk.flush(timeout=2)
"""

HARM = """
import asyncio, os, time
from unpoison import App, Backoff
from unpoison.worker import on_failure

app = App("sqlite:///shop.db")


@app.on_failure
def hook(message, metadata, error):
    if message.id == "orders-2":
        {harm}
"""

CONSUMERS = """
@app.consumer("orders", backoff=Backoff.immediate(), max_attempts=2, {options})
{kind} ship(n: int) -> None:
    order = {{"number": n}}
    if n == 2:
        raise {error}


if __name__ == "__main__":
    app.publish_many("orders", [1, 2, 3], ids=["orders-1", "orders-2", "orders-3"])
"""

KINDS = {"batches": ("def", "concurrency=1"), "threads": ("def", "threads=2, concurrency=2"), "tasks": ("async def", "")}


@pytest.fixture
def sentry():
    """A server that takes envelopes as Sentry does, and the events that it was sent."""
    events = []

    class Envelopes(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            _, *items = body.splitlines()
            events.extend(json.loads(item) for head, item in pairwise(items) if b'"type":"event"' in head)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *about):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Envelopes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, events
    server.shutdown()
    thread.join()
    server.server_close()


def consumed(tmp_path, text):
    (tmp_path / "shop.py").write_text(text)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=LIMIT)
    ended = unpoison("run", "shop:app", "--until-empty", "--log-format", "json", "--json", cwd=tmp_path)
    return ended.json["total"], [json.loads(line) for line in ended.err.splitlines()]


@pytest.mark.parametrize("kind", ["batches", pytest.param("threads", marks=pytest.mark.long), "tasks"])
def test_sentry_gets_the_exception_with_its_locals_and_the_message_as_tags(tmp_path, sentry, kind):
    port, events = sentry
    how, options = KINDS[kind]
    text = SHOP.format(port=port) + CONSUMERS.format(kind=how, options=options, error="ConnectionError('away')")
    total, _ = consumed(tmp_path, text)
    assert (total["done"], total["dead"]) == (2, 1)
    tags = [tuple(str(each["tags"][name]) for name in ("message_id", "source", "attempt")) for each in events]
    assert tags == [("orders-2", "orders", "1"), ("orders-2", "orders", "2")]
    (raised,) = events[0]["exception"]["values"]
    frame = raised["stacktrace"]["frames"][-1]
    assert (raised["type"], frame["function"], frame["vars"]["order"]) == ("ConnectionError", "ship", {"number": "2"})


@pytest.mark.parametrize(
    ("kind", "harm", "said"),
    [
        ("batches", "os._exit(3)", "ended its worker"),
        pytest.param("threads", "os._exit(3)", "ended its worker", marks=pytest.mark.long),
        ("tasks", "os._exit(3)", "ended its worker"),
        pytest.param("batches", "raise KeyError('dsn')", "raised KeyError: 'dsn'", marks=pytest.mark.long),
        ("threads", "raise KeyError('dsn')", "raised KeyError: 'dsn'"),
        pytest.param("tasks", "raise KeyError('dsn')", "raised KeyError: 'dsn'", marks=pytest.mark.long),
    ],
)
def test_a_hook_that_does_harm_is_logged_once_and_the_message_gets_its_own_verdict(tmp_path, kind, harm, said):
    how, options = KINDS[kind]
    total, lines = consumed(
        tmp_path, HARM.format(harm=harm) + CONSUMERS.format(kind=how, options=options, error="ConnectionError('away')")
    )
    assert (total["done"], total["retried"], total["dead"]) == (2, 1, 1)
    assert [line["classification"] for line in lines if line["event"] in ("retry", "dead")] == ["transient"] * 2
    (told,) = [line for line in lines if line["event"] == "hook-failed"]
    assert said in told["message"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_that_hangs_costs_its_worker_and_no_message(tmp_path, kind):
    how, options = KINDS[kind]
    harm = HARM.format(harm="time.sleep(600)")
    total, lines = consumed(tmp_path, harm + CONSUMERS.format(kind=how, options=options, error="ValueError('never')"))
    assert (total["done"], total["dead"]) == (2, 1)
    assert [line["classification"] for line in lines if line["event"] == "dead"] == ["permanent"]
    assert [line["message"].split(",")[0] for line in lines if line["event"] == "hook-failed"] == [
        "on_failure of 'orders' took more than 5 s"
    ]
