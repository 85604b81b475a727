"""What the metrics of a consumer say after real messages went through it."""

import sys
import threading

import pytest

from tests.unit.scraping import families, scraped
from unpoison import App, Backoff, Breaker, Discard, Permanent, Throttled
from unpoison.app_internals import runnable
from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.control.changes import Opened
from unpoison.control.evidence import Evidence
from unpoison.errors import BrokerUnavailable, MissingExtra
from unpoison.flow import store_link
from unpoison.flow.run import Run
from unpoison.model.verdict import ErrorClassification
from unpoison.observing.metrics import Metrics
from unpoison.reporting.observer import Observer
from unpoison.store.choice import store_for
from unpoison.store.port import OPERATOR, Pause
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import PATIENCE

OFTEN = 0.02
QUICK = {"backoff": Backoff.fixed(0.0), "max_attempts": 2}
TABLE = """
poison_pills_total counter classification
message_retries_total counter
dlq_depth gauge
unpoison_messages_handled_total counter
unpoison_messages_discarded_total counter
unpoison_starts_total counter
unpoison_failures_total counter classification
unpoison_attempts_over_limit_total counter
unpoison_handler_seconds histogram
unpoison_messages_in_flight gauge
unpoison_source_depth gauge state
unpoison_source_oldest_seconds gauge
unpoison_consumer_lag gauge
unpoison_source_paused gauge reason
unpoison_breaker_state gauge dependency
unpoison_retry_budget_left_ratio gauge
unpoison_retries_put_off_total counter
unpoison_throttled gauge
unpoison_worker_ends_total counter kind
unpoison_messages_recovered_total counter
unpoison_store_up gauge
unpoison_dlq_writable gauge
unpoison_retention_used_ratio gauge
unpoison_consumer_running gauge
unpoison_depth_read_timestamp_seconds gauge
unpoison_depth_read_errors_total counter
unpoison_info gauge code_version version
"""
"""Rules, dashboards and people's own queries are written with these names."""
WITHOUT_QUEUE = {"unpoison_store_up", "unpoison_info"}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/shop.db"


class Observed:
    """The consumers of some apps in a thread, with their metrics."""

    def __init__(self, *apps):
        self.metrics = Metrics("0.1.0", "abc", every=OFTEN)
        self.run = Run([runnable(app) for app in apps], observers=[self.metrics])
        self._thread = threading.Thread(target=self.run.serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self.run.stop(0)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def value(self, *sample):
        return scraped(self.metrics).get(sample)

    def wait_for(self, value, *sample):
        wait_until(lambda: self.value(*sample) == value, lambda: f"{sample} is {self.value(*sample)}, not {value}")


def drained(*apps):
    """What the metrics say after the sources of these apps were emptied."""
    metrics = Metrics("0.1.0", every=OFTEN)
    Run([runnable(app) for app in apps], observers=[metrics]).serve(until_empty=True)
    return scraped(metrics)


def obey(body: str) -> None:
    """Do what the body says."""
    match body:
        case "permanent":
            raise Permanent("no such article")
        case "discard":
            raise Discard("a duplicate")
        case "always down":
            raise ConnectionError("refused")
        case "throttled":
            raise Throttled(retry_after=60)


async def obey_async(body: str) -> None:
    obey(body)


def shop(url, source="orders", isolation="inline", **options):
    """An app whose handler does what the body says."""
    handle, where = (obey_async, "thread") if isolation == "async" else (obey, isolation)
    return given.consumer(App(url), source, handle, isolation=where, **(QUICK | options))


def nonzero(found, *names):
    return {sample: value for sample, value in found.items() if sample[0] in names and value}


@pytest.mark.parametrize("isolation", ["inline", "thread", "async"])
def test_each_end_of_a_message_is_counted_once(url, isolation):
    app = shop(url, isolation=isolation)
    app.publish_many("orders", ["fine", "fine", "permanent", "discard", "always down"])
    found = drained(app)
    assert nonzero(
        found,
        "unpoison_messages_handled_total",
        "unpoison_messages_discarded_total",
        "poison_pills_total",
        "message_retries_total",
        "unpoison_starts_total",
        "unpoison_failures_total",
        "unpoison_attempts_over_limit_total",
    ) == {
        ("unpoison_messages_handled_total", "orders"): 2,
        ("unpoison_messages_discarded_total", "orders"): 1,
        ("poison_pills_total", "orders", "permanent"): 1,
        ("poison_pills_total", "orders", "transient"): 1,
        ("message_retries_total", "orders"): 1,
        ("unpoison_starts_total", "orders"): 6,
        ("unpoison_failures_total", "orders", "permanent"): 1,
        ("unpoison_failures_total", "orders", "transient"): 2,
    }
    assert found["unpoison_handler_seconds_count", "orders"] == 6
    assert 0 < found["unpoison_handler_seconds_sum", "orders"] < PATIENCE


def test_what_never_reached_its_handler_is_poison_and_no_start(url):
    app = App(url)

    @app.consumer("orders", isolation="inline")
    def handle(order: dict) -> None:
        del order

    app.publish("orders", b"{")
    found = drained(app)
    assert nonzero(found, "poison_pills_total", "unpoison_failures_total", "unpoison_starts_total") == {
        ("poison_pills_total", "orders", "invalid"): 1
    }
    assert found["unpoison_handler_seconds_count", "orders"] == 0


def test_all_that_can_be_counted_is_there_before_it_happens(url):
    """A counter that begins with 1 shows no increase, so no rule would see the first dead letter."""
    found = drained(shop(url))
    assert {sample[2] for sample in found if sample[0] == "poison_pills_total"} == set(ErrorClassification)
    assert {sample[2] for sample in found if sample[0] == "unpoison_failures_total"} == set(ErrorClassification)
    assert {sample[2] for sample in found if sample[0] == "unpoison_worker_ends_total"} == {"crash", "timeout", "memory", "exit"}
    assert {sample[2] for sample in found if sample[0] == "unpoison_source_paused"} == {
        "outage",
        "admission",
        "operator",
        "broker",
    }


def test_names_kinds_and_labels_are_the_ones_that_rules_are_written_with(url):
    metrics = Metrics("0.1.0", "abc", every=OFTEN)
    Run([runnable(shop(url))], observers=[metrics]).serve(until_empty=True)
    found = families(metrics)
    ours = {name: family for name, family in found.items() if name.startswith(("unpoison_", "poison_", "message_", "dlq_"))}
    for line in TABLE.split("\n")[1:-1]:
        name, kind, *labels = line.split()
        family = ours.pop(name.removesuffix("_total"))
        assert family.type == kind
        given_labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        expected = {*labels} if name in WITHOUT_QUEUE else {"queue", *labels}
        assert not family.samples or given_labels == expected, name
    assert not ours
    assert "python_gc_collections" in found
    assert "process_resident_memory_bytes" in found


def test_sources_are_told_apart(url):
    app = App(url)
    for source in ("orders", "emails"):
        given.consumer(app, source, obey, **QUICK)
    app.publish_many("orders", ["fine", "permanent"])
    app.publish("emails", "fine")
    found = drained(app)
    assert nonzero(found, "unpoison_messages_handled_total", "poison_pills_total") == {
        ("unpoison_messages_handled_total", "orders"): 1,
        ("unpoison_messages_handled_total", "emails"): 1,
        ("poison_pills_total", "orders", "permanent"): 1,
    }


def test_sources_of_one_name_in_two_apps_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    apps = [shop(f"sqlite:///{name}.db") for name in ("here", "there")]
    ready = [runnable(app) for app in apps]
    for app, made, name in zip(apps, ready, ("here", "there"), strict=True):
        made.reference = f"{name}:app"
        app.publish_many("orders", ["fine"] * (2 if name == "here" else 3))
    metrics = Metrics("0.1.0", every=OFTEN)
    Run(ready, observers=[metrics]).serve(until_empty=True)
    assert nonzero(scraped(metrics), "unpoison_messages_handled_total") == {
        ("unpoison_messages_handled_total", "orders (here:app)"): 2,
        ("unpoison_messages_handled_total", "orders (there:app)"): 3,
    }


def test_what_a_consumer_has_in_hand_and_whether_it_turns(url):
    app, gate, started = App(url), threading.Event(), threading.Event()

    def wait(body: str) -> None:
        started.set()
        gate.wait(PATIENCE)

    given.consumer(app, "orders", wait, isolation="thread", concurrency=1)
    app.publish("orders", "1")
    with Observed(app) as observed:
        assert started.wait(PATIENCE)
        observed.wait_for(1, "unpoison_messages_in_flight", "orders")
        observed.wait_for(1, "unpoison_source_depth", "orders", "running")
        assert observed.value("unpoison_consumer_running", "orders") == 1
        gate.set()
        observed.wait_for(0, "unpoison_messages_in_flight", "orders")
        observed.wait_for(0, "unpoison_source_depth", "orders", "running")
    assert observed.value("unpoison_consumer_running", "orders") == 0
    assert observed.value("unpoison_info", "abc", "0.1.0") == 1


def test_an_outage_shows_as_a_pause_and_as_an_open_breaker(url):
    app = shop(url, depends_on="billing", breaker=Breaker(messages=3))
    with Observed(app) as observed:
        observed.wait_for(0, "unpoison_breaker_state", "orders", "billing")
        app.publish_many("orders", ["always down"] * 10)
        observed.wait_for(1, "unpoison_source_paused", "orders", "outage")
        assert observed.value("unpoison_breaker_state", "orders", "billing") == 2
        # A failure is counted once it is stored, and a pause shows at once.
        wait_until(lambda: observed.value("unpoison_failures_total", "orders", "outage") > 0, lambda: "no failure is counted")
        assert observed.value("poison_pills_total", "orders", "transient") == 0


def test_a_pause_by_a_person_shows(url, monkeypatch):
    monkeypatch.setattr(store_link, "EXCHANGE_EVERY", OFTEN)
    monkeypatch.setattr(store_link, "EXCHANGE_BUSY", OFTEN)
    app = shop(url)
    with Observed(app) as observed:
        observed.wait_for(1, "unpoison_store_up")
        store = store_for(url)
        store.open()
        store.pause(Pause("orders", OPERATOR, by="ana@desk", reason="", since=0.0))
        observed.wait_for(1, "unpoison_source_paused", "orders", "operator")
        store.resume("orders", "ana@desk")
        observed.wait_for(0, "unpoison_source_paused", "orders", "operator")
        store.close()


def test_throttling_shows(url):
    app = shop(url)
    with Observed(app) as observed:
        observed.wait_for(0, "unpoison_throttled", "orders")
        app.publish_many("orders", ["throttled"] * 10)
        observed.wait_for(1, "unpoison_throttled", "orders")


def test_a_used_up_retry_budget_shows_with_what_it_puts_off(url):
    app = shop(url, budget=0.1, max_attempts=10)
    with Observed(app) as observed:
        observed.wait_for(1, "unpoison_retry_budget_left_ratio", "orders")
        app.publish_many("orders", ["always down"] * 200)
        wait_until(lambda: observed.value("unpoison_retries_put_off_total", "orders"), lambda: "nothing was put off")
        assert observed.value("unpoison_retry_budget_left_ratio", "orders") < 1


def test_letters_at_the_broker_and_in_the_store_are_one_depth(url):
    app = shop(url)
    app.publish_many("orders", ["permanent"] * 3)
    with Observed(app) as observed:
        observed.wait_for(3, "dlq_depth", "orders")
    collecting = given.consumer(App(url, collect=True), "orders", obey, **QUICK)
    store = store_for(url)
    store.open()
    with Observed(collecting) as observed:
        wait_until(lambda: store.waiting_letters() == {"orders": 3}, lambda: "they are not in the store")
        observed.wait_for(3, "dlq_depth", "orders")
        assert observed.value("unpoison_depth_read_errors_total", "orders") == 0
        assert observed.value("unpoison_depth_read_timestamp_seconds", "orders") > 0
    store.close()


def test_a_dlq_that_cannot_be_written_shows_until_it_can(url, monkeypatch):
    broken = threading.Event()
    broken.set()
    settle = SQLiteBroker.settle

    def refuse_letters(self, settlement):
        if settlement.dead and broken.is_set():
            raise BrokerUnavailable("The disk is full.")
        return settle(self, settlement)

    monkeypatch.setattr(SQLiteBroker, "settle", refuse_letters)
    app = shop(url)
    app.publish("orders", "permanent")
    with Observed(app) as observed:
        observed.wait_for(0, "unpoison_dlq_writable", "orders")
        observed.wait_for(1, "unpoison_source_paused", "orders", "broker")
        assert observed.value("unpoison_messages_in_flight", "orders") == 1
        broken.clear()
        observed.wait_for(1, "unpoison_dlq_writable", "orders")
        observed.wait_for(0, "unpoison_source_paused", "orders", "broker")


def test_a_scrape_before_anything_has_started_and_after_everything_has_ended(url):
    metrics = Metrics("0.1.0", every=OFTEN)
    assert scraped(metrics)["unpoison_info", "", "0.1.0"] == 1
    app = shop(url)
    app.publish("orders", "fine")
    Run([runnable(app)], observers=[metrics]).serve(until_empty=True)
    before = threading.active_count()
    assert scraped(metrics)["unpoison_messages_handled_total", "orders"] == 1
    assert not [thread for thread in threading.enumerate() if thread.name in ("unpoison-depths", "unpoison-letters")]
    assert threading.active_count() <= before


def test_a_name_that_cannot_be_encoded_costs_no_other_metric(url):
    metrics = Metrics("0.1.0", every=OFTEN)
    Run([runnable(shop(url))], observers=[metrics]).serve(until_empty=True)
    metrics.controlled("orders", [Opened(Evidence("bill\udcffing", 0.0, 10, ()))], 0.0)
    assert scraped(metrics)["unpoison_breaker_state", "orders", "bill\\udcffing"] == 0


def test_nothing_is_timed_where_nobody_asks(url):
    app = shop(url)
    run = Run([runnable(app)])
    assert [view.numbers.durations for view in run._views.values()] == [None]
    watched = Run([runnable(app)], observers=[Observer()])
    assert all(view.numbers.durations is not None for view in watched._views.values())


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install 'unpoison\[metrics\]'"):
        Metrics("0.1.0")
