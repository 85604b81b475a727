"""Can a message be followed through every process that had to do with it: from its sender to its dead letter and its replay?"""

import json
import subprocess
import sys

import pytest

from tests.e2e.command_line import environment, unpoison
from tests.servers_plugin import OWNER, shared_or_skip
from tests.tracing import written

SHOP = """
import json
import os
import signal
import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from unpoison import App, Backoff
from unpoison.model.message import Delivery


def line(span):
    return json.dumps(json.loads(span.to_json()) | {"pid": os.getpid()}) + "\\n"


def set_up_traces():
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=open("spans", "a"), formatter=line)))
    trace.set_tracer_provider(provider)


app = App(os.environ["SHOP_URL"])
if os.environ.get("WHEN") == "import":
    set_up_traces()
else:
    app.on_worker_start(set_up_traces)


def work(order, delivery):
    with trace.get_tracer("shop").start_as_current_span(f"inside {delivery.id}"):
        pass
    if order["do"] == "crash" and delivery.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if order["do"] == "hang" and delivery.attempt == 1:
        time.sleep(60)
    if order["do"] == "later" and delivery.attempt == 1:
        raise TimeoutError
    if order["do"] == "bad" and not os.environ.get("FIXED"):
        raise KeyError("piano")


options = {"max_attempts": 2, "backoff": Backoff.immediate(), "concurrency": 1, "timeout": 0.5}


if "orders" in os.environ["SOURCES"]:

    @app.consumer("orders", **options)
    def handle(order: dict, delivery: Delivery):
        work(order, delivery)


if "bodies" in os.environ["SOURCES"]:

    @app.consumer("bodies", **options)
    def plain(order: dict):
        pass


if "threads" in os.environ["SOURCES"]:

    @app.consumer("threads", threads=2, **options)
    def in_threads(order: dict, delivery: Delivery):
        work(order, delivery)


if "tasks" in os.environ["SOURCES"]:

    @app.consumer("tasks", **options)
    async def as_task(order: dict, delivery: Delivery):
        work(order, delivery)


if __name__ == "__main__":
    set_up_traces()
    sent = json.loads(os.environ["SENT"])
    for source, what in sent:
        app.publish(source, {"do": what}, id=f"{source}-{what}")
    trace.get_tracer_provider().shutdown()
"""

SERVERS = ("postgresql", "rabbitmq", "redis", "nats", "kafka", "elasticmq")


@pytest.fixture(
    params=[
        "sqlite",
        *(pytest.param(name, marks=[pytest.mark.long, pytest.mark.servers(name)]) for name in SERVERS),
    ]
)
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return shared_or_skip(request.param, request.config.stash[OWNER]).fresh()


class Shop:
    """The app in a folder, and what its processes have written."""

    def __init__(self, folder, url=None, sources="orders", **variables):
        self.folder = folder
        self.variables = {"SHOP_URL": url or f"sqlite:///{folder}/shop.db", "SOURCES": sources, **variables}
        (folder / "shop.py").write_text(SHOP)

    def publish(self, *sent):
        variables = environment(**self.variables, SENT=json.dumps(sent))
        subprocess.run([sys.executable, "shop.py"], cwd=self.folder, env=variables, check=True, timeout=60)

    def run(self, **variables):
        return unpoison("run", "shop:app", "--until-empty", cwd=self.folder, **self.variables, **variables)

    def dlq(self, *arguments):
        return unpoison("dlq", *arguments, "--app", "shop:app", cwd=self.folder, **self.variables)

    @property
    def spans(self):
        return written(self.folder / "spans")


def test_a_message_is_followed_on_every_broker(url, tmp_path):
    """A success, a retry that succeeds, and a dead letter whose replay succeeds."""
    shop = Shop(tmp_path, url)
    shop.publish(("orders", "fine"), ("orders", "later"), ("orders", "bad"))
    assert shop.run().code == 0
    (letter,) = shop.dlq("ls", "--json").json
    assert shop.dlq("replay", letter["id"]).code == 0
    assert shop.run(FIXED="1").code == 0
    spans = shop.spans
    told = {id_: [each.name for each in spans.of(id_)] for id_ in ("orders-fine", "orders-later", "orders-bad")}
    attempts = {id_: spans.of(id_, "process orders") for id_ in told}
    assert sorted(told["orders-fine"]) == ["process orders", "send orders"]
    assert sorted(told["orders-later"]) == ["process orders", "process orders", "send orders", "unpoison.retry"]
    assert sorted(told["orders-bad"]) == ["process orders", "process orders", "send orders", "unpoison.dead_letter"]
    for id_ in told:
        (sent,) = spans.of(id_, "send orders")
        assert {each.trace for each in spans.of(id_)} == {sent.trace}
        assert {each.parent for each in attempts[id_]} == {sent.id}
        assert all(each.links == [sent.id] for each in attempts[id_])
        assert sorted(each.parent for each in spans.named(f"inside {id_}")) == sorted(each.id for each in attempts[id_])
    (dead,) = spans.of("orders-bad", "unpoison.dead_letter")
    failed, replayed = sorted(attempts["orders-bad"], key=lambda each: each.attributes.get("unpoison.replays", 0))
    assert (dead.parent, failed.status, replayed.status) == (failed.id, "ERROR", "UNSET")
    assert replayed.attributes["unpoison.replays"] == 1
    assert f"0x{letter['trace_id']}" == dead.trace
    assert dead.attributes.get("unpoison.letter_id", letter["id"]) == letter["id"]  # not every broker knows it at once


@pytest.mark.parametrize("when", ["start", pytest.param("import", marks=pytest.mark.long)])
def test_what_took_its_process_down_is_seen_whenever_the_sdk_is_set_up(when, tmp_path):
    """A crash and a hang end their worker, which can send no span any more."""
    shop = Shop(tmp_path, sources="orders bodies", WHEN=when)
    shop.publish(("orders", "crash"), ("orders", "hang"), ("bodies", "fine"))
    ended = shop.run()
    assert ended.code == 0, ended.err
    assert ("cannot be forked" in ended.err) == (when == "import")  # the thread of the BatchSpanProcessor
    spans = shop.spans
    for what, kind in (("crash", "crash"), ("hang", "timeout")):
        (sent,) = spans.of(f"orders-{what}", "send orders")
        attempts = spans.of(f"orders-{what}", "process orders")
        failed, succeeded = sorted(attempts, key=lambda each: each.attributes["unpoison.attempt"])
        (retry,) = spans.of(f"orders-{what}", "unpoison.retry")
        assert {each.parent for each in (failed, succeeded)} == {sent.id}
        assert (failed.status, failed.attributes["unpoison.classification"]) == ("ERROR", kind)
        assert (succeeded.status, retry.parent, retry.trace) == ("UNSET", failed.id, sent.trace)
    (crashed,) = [each for each in spans.of("orders-crash") if each.attributes.get("unpoison.crash.signal")]
    assert crashed.attributes["unpoison.crash.signal"] == "SIGSEGV"
    assert "in work" in crashed.events[0]["attributes"]["exception.stacktrace"]
    (sent,), (process,) = spans.named("send bodies"), spans.named("process bodies")
    assert process.parent == sent.id  # its handler takes no Delivery, so as a rule no header comes to its worker


def test_threads_and_tasks_of_a_worker_have_spans_of_their_own(tmp_path):
    shop = Shop(tmp_path, sources="threads tasks")
    shop.publish(*[(source, what) for source in ("threads", "tasks") for what in ("fine", "later", "bad")])
    assert shop.run().code == 0
    spans = shop.spans
    for source in ("threads", "tasks"):
        for what, ends in (("later", ["ERROR", "UNSET"]), ("bad", ["ERROR"]), ("fine", ["UNSET"])):
            attempts = spans.of(f"{source}-{what}", f"process {source}")
            assert sorted(each.status for each in attempts) == ends, (source, what)
            inside = spans.named(f"inside {source}-{what}")
            assert sorted(each.parent for each in inside) == sorted(each.id for each in attempts)
        (failed,) = spans.of(f"{source}-bad", f"process {source}")
        (dead,) = spans.of(f"{source}-bad", "unpoison.dead_letter")
        assert dead.parent == failed.id


def test_an_exporter_that_fails_and_hangs_costs_spans_and_no_message(tmp_path):
    shop = Shop(tmp_path)
    broken = SHOP.replace("def line(span):", "def line(span):\n    time.sleep(0.2)\n    raise RuntimeError")
    shop.publish(("orders", "fine"), ("orders", "later"), ("orders", "bad"))
    (tmp_path / "shop.py").write_text(broken)
    ended = shop.run()
    assert "1 dead" in ended.text
    assert "2 done" in ended.text
    assert shop.spans.named("process orders") == []


def test_dlq_show_names_the_trace(tmp_path):
    shop = Shop(tmp_path)
    shop.publish(("orders", "bad"))
    shop.run()
    (letter,) = shop.dlq("ls", "--json").json
    (sent,) = shop.spans.named("send orders")
    assert f"trace         {sent.trace.removeprefix('0x')}" in shop.dlq("show", letter["id"]).text
