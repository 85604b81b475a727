"""The thread in which a consumer asks the store: how it begins, how it ends, and that nobody waits for it."""

import threading

import pytest

from tests.unit.stores import opened, paused, too_many_dead
from unpoison.control.options import ControlOptions
from unpoison.control.source import SourceControl
from unpoison.errors import ConfigError, StoreUnavailable
from unpoison.flow import store_link
from unpoison.flow.store_link import StoreLink
from unpoison.store.choice import store_for
from unpoison.store.port import ADMISSION
from unpoison.testing.processes import PATIENCE


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/fleet.db"


@pytest.fixture
def link_to():
    made = []

    def make(store, ring=lambda: None, **options):
        made.append(StoreLink(store, "orders", "a:1", "1.0", ring, **options))
        return made[-1]

    yield make
    for link in made:
        link.close()


class Slow:
    """Stands for a store that does not answer until it is let go."""

    def __init__(self, store, what="exchange"):
        self.store, self.what = store, what
        self.asked, self.let_go = threading.Event(), threading.Event()

    def __getattr__(self, name):
        if name == self.what and not self.let_go.is_set():
            self.asked.set()
            assert self.let_go.wait(PATIENCE)
        return getattr(self.store, name)


def test_a_pause_is_known_before_the_first_message(url, link_to):
    operators = opened(url)
    operators.pause(paused())
    link, control = link_to(opened(url)), SourceControl(ControlOptions())
    link.start()
    link.sync(control)
    assert control.room(0.0) == 0
    operators.close()


def test_what_is_heard_later_wakes_the_consumer(url, link_to, monkeypatch):
    monkeypatch.setattr(store_link, "EXCHANGE_EVERY", 0.01)
    operators, rung = opened(url), threading.Event()
    link, control = link_to(opened(url), rung.set), SourceControl(ControlOptions())
    link.start()
    link.sync(control)
    rung.clear()
    operators.pause(paused())
    while control.pause is None:
        assert rung.wait(PATIENCE)
        rung.clear()
        link.sync(control)
    operators.close()


def test_a_consumer_that_ends_takes_its_leave(url, link_to):
    operators, link = opened(url), link_to(opened(url))
    link.start()
    assert [each.consumer for each in operators.consumers("orders")] == ["a:1"]
    link.close()
    assert list(operators.consumers()) == []
    operators.close()


def test_the_fleet_hears_of_what_a_consumer_found_right_before_its_end(url, link_to, monkeypatch):
    monkeypatch.setattr(store_link, "LEAVE_WITHIN", PATIENCE)
    operators, link, control = opened(url), link_to(opened(url)), SourceControl(ControlOptions())
    link.start()
    link.sync(control)
    too_many_dead(control, 0.0)
    link.sync(control)
    link.close()
    assert [(each.kind, each.by, each.code_version) for each in operators.pauses("orders")] == [(ADMISSION, "a:1", "1.0")]
    assert list(operators.consumers()) == []
    operators.close()


def test_a_database_that_cannot_be_the_store_is_an_error_at_the_start(url, link_to, tmp_path):
    (tmp_path / "fleet.db").touch()
    with pytest.raises(ConfigError, match=r"no store tables.*unpoison migrate"):
        link_to(store_for(url), create=False).start()


def test_a_store_that_is_away_at_the_start_keeps_nobody_waiting(url, link_to, caplog):
    class Away:
        def __getattr__(self, name):
            raise StoreUnavailable("The store at 'postgresql://db/shop' cannot be used: connection refused.")

    link, control = link_to(Away()), SourceControl(ControlOptions())
    link.start()
    link.sync(control)
    assert control.room(0.0) is None
    link.close()
    assert [record.event for record in caplog.records] == ["store-away"]


def test_a_store_that_does_not_answer_at_the_start_is_not_waited_for_long(url, link_to, monkeypatch):
    monkeypatch.setattr(store_link, "FIRST_WITHIN", 0.01)
    slow = Slow(opened(url), "open")
    link_to(slow).start()
    assert slow.asked.is_set()
    slow.let_go.set()


def test_a_database_of_which_it_is_known_too_late_that_it_cannot_be_the_store_is_one_that_is_away(link_to, monkeypatch, caplog):
    monkeypatch.setattr(store_link, "FIRST_WITHIN", 0.01)
    monkeypatch.setattr(store_link, "EXCHANGE_EVERY", 0.01)

    class Newer:
        def open(self, *, create=True):
            raise ConfigError("The tables were made by a newer unpoison.")

        def close(self):
            """It was never open."""

    slow = Slow(Newer(), "open")
    link = link_to(slow)
    link.start()
    slow.let_go.set()
    assert link._first.wait(PATIENCE)
    link.close()
    link._thread.join(PATIENCE)
    assert [record.event for record in caplog.records] == ["store-away"]
    assert "made by a newer unpoison" in caplog.text


def test_a_consumer_does_not_wait_for_a_store_that_hangs_when_it_ends(url, link_to, monkeypatch):
    monkeypatch.setattr(store_link, "EXCHANGE_EVERY", 0.01)
    monkeypatch.setattr(store_link, "LEAVE_WITHIN", 0.01)
    slow = Slow(opened(url))
    slow.let_go.set()
    link = link_to(slow)
    link.start()
    slow.let_go.clear()
    assert slow.asked.wait(PATIENCE)
    link.close()
    assert link._thread.is_alive(), "it still hangs, and nobody waits"
    slow.let_go.set()
    link._thread.join(PATIENCE)
    assert not link._thread.is_alive()
