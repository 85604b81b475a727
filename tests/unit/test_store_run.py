"""Which store an app that runs has, what that costs it, and what operators can do with it."""

import logging
import threading

import pytest

from tests.unit import sqlite_files
from tests.unit.stores import opened, paused
from unpoison import App
from unpoison.app_internals import runnable
from unpoison.errors import ConfigError
from unpoison.flow import store_link
from unpoison.flow.consumer import Consumer
from unpoison.flow.run import Run
from unpoison.store.choice import statements_for
from unpoison.testing import given
from unpoison.testing.processes import PATIENCE


@pytest.fixture
def file(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(store_link, "EXCHANGE_EVERY", 0.02)
    monkeypatch.setattr(store_link, "EXCHANGE_BUSY", 0.02)


def tables(file):
    return {name for (name,) in sqlite_files.query(file, "select name from sqlite_master where name like 'unpoison_%'")}


class Running:
    """The consumers of an app in a thread, until the block ends."""

    def __init__(self, app):
        self.run = Run([runnable(app)])
        self.thread = threading.Thread(target=self.run.serve)

    def __enter__(self):
        self.thread.start()
        return self.run

    def __exit__(self, *raised):
        self.run.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def test_the_brokers_file_is_the_store_unless_told_otherwise(file, monkeypatch):
    for app in (App(f"sqlite:///{file}.a"), App(f"sqlite:///{file}.b", store="")):
        given.consumer(app, "orders", lambda order: None)
        app.publish("orders", 1)
        app.run(until_empty=True)
    assert "unpoison_pauses" in tables(f"{file}.a")
    assert "unpoison_pauses" not in tables(f"{file}.b")
    monkeypatch.setenv("UNPOISON_STORE", f"sqlite:///{file}.c")
    assert App("memory://").settings.store == f"sqlite:///{file}.c"
    assert App("memory://", store="").settings.store == ""


def test_a_store_that_is_none_is_refused_when_the_app_is_made():
    with pytest.raises(ConfigError, match="cannot be a store"):
        App("memory://", store="redis://h/0")
    with pytest.raises(ConfigError, match="store must be a URL, got False"):
        App("memory://", store=False)


def test_a_broker_without_a_database_can_have_a_file_as_its_store(file):
    app = given.consumer(App("memory://", store=f"sqlite:///{file}"), "orders", lambda order: None)
    app.publish("orders", 1)
    app.run(until_empty=True)
    assert "unpoison_consumers" in tables(file)


def test_who_has_consumed_is_gone_from_the_store_at_the_end_also_after_a_fault(file, monkeypatch):
    app = given.consumer(App(f"sqlite:///{file}"), "orders", lambda order: None)
    app.publish("orders", 1)
    app.run(until_empty=True)
    seen = sqlite_files.query(file, "select count(*) from unpoison_consumers")
    monkeypatch.setattr(Consumer, "turn", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        app.run()
    assert seen == sqlite_files.query(file, "select count(*) from unpoison_consumers") == [(0,)]


def test_an_operator_pauses_a_source_and_resumes_it(file, often):
    started, handled = threading.Event(), []

    def handle(order):
        handled.append(order)
        started.set()

    app = given.consumer(App(f"sqlite:///{file}"), "orders", handle, isolation="thread")
    operators = opened(f"sqlite:///{file}")
    operators.pause(paused(reason="stock-taking"))
    app.publish("orders", 1)
    with Running(app):
        while not [each for each in operators.consumers("orders") if each.state == "paused"]:
            assert not started.wait(0.02)
        assert handled == []
        operators.resume("orders", "ada@desk")
        assert started.wait(PATIENCE)
    operators.close()
    assert handled == [1]


def test_a_store_that_is_away_keeps_no_message_and_is_named_once(file, tmp_path, often, caplog):
    caplog.set_level(logging.INFO, "unpoison")
    done = threading.Barrier(2)
    app = App(f"sqlite:///{file}", store=f"sqlite:///{tmp_path}/fleet.db")
    given.consumer(app, "orders", lambda order: done.wait(PATIENCE), isolation="thread")
    (tmp_path / "fleet.db").mkdir()
    with Running(app):
        for number in range(3):
            app.publish("orders", number)
            done.wait(PATIENCE)
    lines = [record.getMessage() for record in caplog.records if "store" in getattr(record, "event", "")]
    assert len(lines) == 1
    assert lines[0].startswith(f"Source 'orders': The store cannot be used. SQLite file '{tmp_path}/fleet.db'")


def test_with_create_false_missing_tables_are_refused_with_the_command_that_makes_them(file):
    app = given.consumer(App(f"sqlite:///{file}", create=False), "orders", lambda order: None)
    sqlite_files.opened(file, "orders").close()
    with pytest.raises(ConfigError, match=r"no store tables of unpoison.*unpoison migrate"):
        app.run(until_empty=True)
    for statement in statements_for(f"sqlite:///{file}").split(";\n"):
        sqlite_files.query(file, statement)
    app.publish("orders", 1)
    assert app.run(until_empty=True).sources["orders"].done == 1


def test_publishing_and_looking_at_dead_letters_do_without_the_store(file):
    app = App(f"sqlite:///{file}")
    app.publish("orders", 1)
    app.dlq("orders").count()
    app.close()
    assert "unpoison_pauses" not in tables(file)
