"""Tombstones and native facts reach handlers in worker processes of every kind, with real workers and no broker."""

from types import SimpleNamespace

import pytest

from unpoison.flow.runnable import RunnableApp
from unpoison.model.message import Delivery, Native
from unpoison.workers.interface import Bell

APP = """
from unpoison import App, Delivery
app = App("sqlite:///unused.db")

def check(body, delivery=None):
    raise ValueError(repr((body,) if delivery is None else (body, delivery.is_tombstone, delivery.native)))

@app.consumer("orders", concurrency=1)
def bare(body: bytes | None) -> None:
    check(body)

@app.consumer("with-delivery", concurrency=1)
def with_delivery(body: bytes | None, delivery: Delivery) -> None:
    check(body, delivery)

@app.consumer("threads", concurrency=2, threads=2)
def in_threads(body: bytes | None, delivery: Delivery) -> None:
    check(body, delivery)

@app.consumer("async", concurrency=2)
async def in_tasks(body: bytes | None, delivery: Delivery) -> None:
    check(body, delivery)
"""

NATIVE = Native(b"\xff", (("a", b"1"), ("a", 2)), {"partition": 3})


@pytest.mark.parametrize("source", ["orders", "with-delivery", "threads", "async"])
def test_a_handler_in_a_worker_process_tells_a_tombstone_from_an_empty_body(tmp_path, monkeypatch, source):
    (tmp_path / "native_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    app = RunnableApp.from_reference("native_shop:app", dict)
    (options,) = [each for each in app.consumers() if each.source == source]
    assert options.takes_delivery is (source != "orders")
    workers = app.start_workers(options, SimpleNamespace(inherited_fds=lambda: ()), Bell()).workers
    sent = [
        Delivery(1, source, "null", b"", is_tombstone=True, native=NATIVE),
        Delivery(2, source, "empty", b"", native=NATIVE),
    ]
    workers.start(sent[:1])
    workers.start(sent[1:])
    told = {}
    while len(told) < 2:
        workers.wait(1.0)
        told |= {ended.deliveries[n].id: failure.text for ended in workers.ended() for n, failure in ended.failures.items()}
    workers.close()
    app.close()
    if source == "orders":
        assert told == {"null": "(None,)", "empty": "(b'',)"}
    else:
        assert told == {"null": repr((None, True, NATIVE)), "empty": repr((b"", False, NATIVE))}
