"""What the metrics say after poison went through isolated workers: on a file, and on servers."""

import pytest

from tests.contract.labs import SQLiteLab
from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.contract.redis_lab import RedisLab
from tests.unit.scraping import scraped
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.observing.metrics import Metrics
from unpoison.testing.isolation.diary import SOURCE, VARIABLE
from unpoison.testing.isolation.scene import SCRIPTED_APP, Scene

TROUBLE = {
    "fine-1": {},
    "fine-2": {"do": "work", "how": 0.002},
    "permanent": {"do": "give_up"},
    "discard": {"do": "discard"},
    "retried": {"do": ["raise", "nothing"]},
    "unknown": {"do": "raise"},
    "crash": {"do": "segfault"},
    "exit": {"do": "exit"},
    "stuck": {"do": "loop"},
    "unreadable": b"{",
}
"""Three attempts each, without flow control."""


SERVERS = {"redis": RedisLab, "rabbitmq": RabbitMQLab}


@pytest.fixture(params=["sqlite", *SERVERS])
def lab(request, tmp_path):
    name = request.param
    made = SQLiteLab(tmp_path) if name == "sqlite" else SERVERS[name](request.getfixturevalue(name), tmp_path)
    with made as lab:
        yield lab


def drained(scene, monkeypatch):
    """What the metrics say once nothing waits any more."""
    monkeypatch.setenv(VARIABLE, scene.plan.as_environment()[VARIABLE])
    metrics = Metrics("0.1.0", every=0.05)
    Run([RunnableApp.from_reference(SCRIPTED_APP, dict)], observers=[metrics]).serve(until_empty=True)
    return scraped(metrics)


def nonzero(found, *names):
    return {sample: value for sample, value in found.items() if sample[0] in names and value}


@pytest.mark.parametrize(
    ("lab", "style"),
    [
        *((name, "sync") for name in ("sqlite", *SERVERS)),
        *(pytest.param("sqlite", each, marks=pytest.mark.long) for each in ("threads", "async")),
    ],
    indirect=["lab"],
)
def test_poison_of_every_kind_is_counted_exactly(lab, style, monkeypatch):
    scene = Scene(lab, style=style, max_attempts=3, timeout=0.5, concurrency=1, threads=2 if style == "threads" else 1)
    scene.publish(TROUBLE)
    found = drained(scene, monkeypatch)
    assert nonzero(
        found,
        "unpoison_messages_handled_total",
        "unpoison_messages_discarded_total",
        "message_retries_total",
        "poison_pills_total",
        "unpoison_failures_total",
        "unpoison_worker_ends_total",
        "unpoison_starts_total",
        "unpoison_attempts_over_limit_total",
        "unpoison_messages_recovered_total",
        "unpoison_messages_in_flight",
        "unpoison_source_paused",
    ) == {
        ("unpoison_messages_handled_total", SOURCE): 3,
        ("unpoison_messages_discarded_total", SOURCE): 1,
        ("message_retries_total", SOURCE): 1 + 2 + 2 + 2 + 2,
        ("poison_pills_total", SOURCE, "permanent"): 1,
        ("poison_pills_total", SOURCE, "transient"): 1,
        ("poison_pills_total", SOURCE, "crash"): 2,
        ("poison_pills_total", SOURCE, "timeout"): 1,
        ("poison_pills_total", SOURCE, "invalid"): 1,
        ("unpoison_failures_total", SOURCE, "permanent"): 1,
        ("unpoison_failures_total", SOURCE, "transient"): 4,
        ("unpoison_failures_total", SOURCE, "crash"): 6,
        ("unpoison_failures_total", SOURCE, "timeout"): 3,
        ("unpoison_worker_ends_total", SOURCE, "crash"): 3,
        ("unpoison_worker_ends_total", SOURCE, "exit"): 3,
        ("unpoison_worker_ends_total", SOURCE, "timeout"): 3,
        ("unpoison_starts_total", SOURCE): 3 + 1 + 1 + 4 + 6 + 3,
    }
    assert found["unpoison_handler_seconds_count", SOURCE] <= 18
    assert found["unpoison_handler_seconds_bucket", SOURCE, "0.5"] <= found["unpoison_handler_seconds_count", SOURCE] - 3
    assert 1.5 <= found["unpoison_handler_seconds_sum", SOURCE] < 60


def test_durations_of_isolated_handlers_are_complete(lab, monkeypatch):
    scene = Scene(lab, concurrency=1)
    scene.healthy(300)
    scene.healthy(3, "slow", do="work", how=0.002)
    found = drained(scene, monkeypatch)
    assert found["unpoison_handler_seconds_count", SOURCE] == 303
    assert found["unpoison_handler_seconds_sum", SOURCE] >= 0.006


def test_messages_of_a_consumer_that_died_are_recovered(lab, monkeypatch):
    scene = Scene(lab, concurrency=1, max_attempts=10)
    ids = scene.healthy(5)
    scene.vanish(only=ids[:3])
    found = drained(scene, monkeypatch)
    assert found["unpoison_messages_recovered_total", SOURCE] == 3
    assert found["unpoison_messages_handled_total", SOURCE] == 5


def test_memory_that_runs_out_ends_a_worker(tmp_path, monkeypatch):
    with SQLiteLab(tmp_path) as lab:
        scene = Scene(lab, concurrency=1, max_attempts=1, settings={"worker_memory": 512 * 1024 * 1024})
        scene.publish({"large": {"do": "allocate", "how": 4000}})
        found = drained(scene, monkeypatch)
    assert nonzero(found, "unpoison_worker_ends_total") == {("unpoison_worker_ends_total", SOURCE, "memory"): 1}
