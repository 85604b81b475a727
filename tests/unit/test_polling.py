"""How depths are read beside a consumer: seldom enough, never in anyone's way, and never shown as fresh when they are not."""

import threading
from contextlib import closing
from typing import Any

import pytest

from tests.unit.scraping import scraped
from unpoison.brokers.memory import MemoryBroker
from unpoison.errors import BrokerUnavailable, ConfigError, StoreUnavailable
from unpoison.model.message import Outgoing
from unpoison.observing import depths as reads
from unpoison.observing import polling
from unpoison.observing.depths import ASK_LIMIT_EVERY, BrokerDepths, StoredLetters
from unpoison.observing.metrics import Metrics
from unpoison.observing.polling import EVERY, FRESH_FOR, SHARE
from unpoison.reporting.consumer_state import ConsumerState
from unpoison.reporting.numbers import SourceNumbers
from unpoison.testing.processes import PATIENCE

URL = "memory://polling"


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class View:
    """Of a source whose consumer has opened its broker, or has not yet."""

    depends_on = None

    def __init__(self, source="orders", url=URL, store="", is_open=True):
        self.source, self.url, self.store, self.opened = source, url, store, is_open
        self.numbers = SourceNumbers()

    def is_open(self):
        return self.opened

    def is_running(self):
        return self.opened

    def state(self):
        return None


class Watched(MemoryBroker):
    """A broker whose answers take time, fail or never come."""

    clock_of_test: Any = None
    hangs: Any = None
    takes, fails, opens, asks, limits_asked = 0.0, "", 0, 0, 0

    def open(self, sources, **how):
        Watched.opens += 1
        return super().open(sources, **how)

    def depth(self, source):
        Watched.asks += 1
        Watched.clock_of_test.now += self.takes
        if Watched.hangs is not None:
            Watched.hangs.wait(PATIENCE)
        if self.fails == "always" or (self.fails == "old" and Watched.asks == 2):
            raise BrokerUnavailable("It is away.")
        if self.fails == "fault":
            raise KeyError("ours")
        return super().depth(source)

    def deletes_after(self, source):
        Watched.limits_asked += 1
        return 60.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for name, value in {"clock_of_test": clock, "takes": 0.0, "fails": "", "opens": 0, "asks": 0, "hangs": None}.items():
        monkeypatch.setattr(Watched, name, value)
    monkeypatch.setattr(Watched, "limits_asked", 0)
    monkeypatch.setattr(reads, "broker_for", Watched)
    return clock


@pytest.fixture
def depths(clock, monkeypatch):
    """Read in the test's own thread, when it says so."""
    depths = BrokerDepths(URL, monotonic=clock)
    monkeypatch.setattr(depths._thread, "start", lambda: None)
    with closing(MemoryBroker(URL)) as broker:
        broker.open(["orders"])
        yield depths


def publish(count):
    with closing(MemoryBroker(URL)) as broker:
        broker.open(["orders"])
        broker.publish([Outgoing(f"m{n}", "orders", b"1") for n in range(count)])
        return broker.depth("orders").ready


def test_a_quick_read_comes_again_after_the_interval_over_the_same_connection(depths, clock):
    depths.watch(View())
    ready = publish(3)
    assert depths.step() == EVERY
    assert depths.fresh("orders").depth.ready == ready
    clock.now += EVERY / 2
    assert depths.step() == EVERY / 2
    clock.now += EVERY
    depths.step()
    assert (Watched.opens, Watched.asks) == (1, 2)


def test_slow_reads_take_no_more_than_their_share_of_the_time(depths, clock, monkeypatch):
    monkeypatch.setattr(Watched, "takes", 6.0)
    depths.watch(View())
    assert depths.step() == pytest.approx(6.0 / SHARE)
    assert depths.fresh("orders") is not None
    clock.now += 6.0 / SHARE - 1
    assert depths.step() == pytest.approx(1)
    assert Watched.asks == 1


def test_a_broker_that_is_away_is_asked_as_often_as_before_and_its_old_answers_end(depths, clock, monkeypatch):
    depths.watch(View())
    depths.step()
    at = depths.last("orders").at
    monkeypatch.setattr(Watched, "fails", "always")
    monkeypatch.setattr(Watched, "takes", 5.0)
    clock.now += EVERY
    assert depths.step() == EVERY
    assert depths.errors == {"orders": 1}
    assert depths.fresh("orders") is not None  # one read that failed does not make a graph blink
    clock.now += FRESH_FOR * EVERY
    depths.step()
    assert (depths.fresh("orders"), depths.errors) == (None, {"orders": 2})
    assert depths.last("orders").at == at
    monkeypatch.setattr(Watched, "fails", "")
    clock.now += EVERY
    depths.step()
    assert depths.fresh("orders") is not None


def test_a_connection_that_was_lost_meanwhile_is_no_error(depths, clock, monkeypatch):
    depths.watch(View())
    depths.step()
    monkeypatch.setattr(Watched, "fails", "old")
    clock.now += EVERY
    depths.step()
    assert (depths.errors, Watched.opens) == ({"orders": 0}, 2)


def test_a_fault_of_our_own_is_logged_once(depths, clock, monkeypatch, caplog):
    monkeypatch.setattr(Watched, "fails", "fault")
    depths.watch(View())
    for _ in range(3):
        depths.step()
        clock.now += EVERY
    assert depths.errors == {"orders": 3}
    (line,) = [record for record in caplog.records if record.name == "unpoison"]
    assert line.getMessage().startswith("Depths could not be read, by a fault in unpoison.")


def test_a_source_is_read_once_its_consumer_has_opened_it(depths, clock):
    late = View("emails", is_open=False)
    depths.watch(View())
    depths.watch(late)
    assert depths.step() == polling.SOON
    clock.now += polling.SOON
    depths.step()
    assert Watched.asks == 1
    late.opened = True
    depths.step()
    assert (Watched.asks, depths.errors) == (3, {"orders": 0, "emails": 0})
    assert depths.fresh("emails") is not None


def test_before_any_source_is_open_nothing_is_asked_and_little_looked(depths):
    depths.watch(View(is_open=False))
    assert depths.step() == polling.SOON
    assert Watched.opens == 0


def test_after_how_long_messages_are_deleted_is_asked_once_an_hour(depths, clock):
    depths.watch(View())
    for _ in range(10):
        depths.step()
        clock.now += EVERY
    assert (Watched.asks, Watched.limits_asked) == (10, 1)
    clock.now += ASK_LIMIT_EVERY
    depths.step()
    assert Watched.limits_asked == 2


def test_while_the_store_is_away_nobody_is_told_half_of_a_dlq(tmp_path, clock, monkeypatch):
    store = f"sqlite:///{tmp_path}/store.db"
    letters = StoredLetters(store, monotonic=clock)
    monkeypatch.setattr(letters._thread, "start", lambda: None)
    view = View(store=store)
    letters.watch(view)
    letters.step()
    assert letters.fresh("orders") == 0  # a store that no consumer has used yet
    assert not (tmp_path / "store.db").exists()

    def away(*_, **__):
        raise StoreUnavailable("It is away.")

    monkeypatch.setattr("unpoison.store.sql_store.SQLStore.open", away)
    for _ in range(FRESH_FOR + 1):
        clock.now += EVERY
        letters.step()
    assert (letters.fresh("orders"), letters.errors["orders"]) == (None, FRESH_FOR + 1)


def test_a_scrape_waits_for_no_broker_and_the_end_for_no_read(clock, monkeypatch):
    monkeypatch.setattr(Watched, "hangs", threading.Event())
    monkeypatch.setattr(polling, "END_WITHIN", 0.05)
    metrics = Metrics("0.1.0")
    metrics.watch("orders", View())
    try:
        found = scraped(metrics)
        metrics.close()
    finally:
        Watched.hangs.set()
        metrics._depths[URL]._thread.join(PATIENCE)  # the next tests count threads
    assert ("unpoison_source_depth", "orders", "ready") not in found
    assert ("dlq_depth", "orders") not in found
    assert found["unpoison_depth_read_errors_total", "orders"] == 0
    assert ("unpoison_depth_read_timestamp_seconds", "orders") not in found


def test_sources_of_one_broker_share_a_connection_and_a_thread(clock):
    metrics = Metrics("0.1.0")
    before = threading.active_count()
    for source in ("orders", "emails", "refunds"):
        metrics.watch(source, View(source, is_open=False))
    assert threading.active_count() == before + 1
    metrics.close()
    assert threading.active_count() == before


def test_what_is_wrong_with_a_url_ends_no_consumer(depths, clock, monkeypatch):
    def refused(_):
        raise ConfigError("no such broker")

    monkeypatch.setattr(reads, "broker_for", refused)
    depths.watch(View())
    depths.step()
    assert depths.errors == {"orders": 1}


def test_where_a_broker_does_not_say_what_waits_longest_its_consumer_does(clock):
    view, metrics = View(is_open=False), Metrics("0.1.0")
    view.state = lambda: ConsumerState(0, frozenset(), {}, None, 0, False, True, None, 0.6)
    metrics.watch("orders", view)
    try:
        assert scraped(metrics)["unpoison_retention_used_ratio", "orders"] == 0.6
    finally:
        metrics.close()
