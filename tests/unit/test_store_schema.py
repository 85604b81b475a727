"""The tables of the store know their version, apart from those of a broker in the same database."""

import sqlite3
from contextlib import closing
from functools import partial

import psycopg
import pytest

from tests.unit import sqlite_files
from tests.unit.stores import new_store, opened, paused
from unpoison.errors import ConfigError
from unpoison.store import choice, schema
from unpoison.testing.processes import Child, Gate

NEWEST = len(schema.MIGRATIONS)
VERSION = "select version from unpoison_store_version"


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return new_store(request, tmp_path)


def query(url, statement):
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


def run_script(url, script):
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        with psycopg.connect(url) as connection:
            connection.execute(script)


def test_a_database_without_tables_gets_the_newest_version(url):
    opened(url).close()
    assert query(url, VERSION) == [(NEWEST,)]
    opened(url).close()
    assert query(url, VERSION) == [(NEWEST,)]


def test_tables_of_an_older_version_are_brought_up_to_date_and_keep_what_they_hold(url, monkeypatch):
    store = opened(url)
    store.pause(paused())
    store.close()
    newer = (*schema.MIGRATIONS, "alter table unpoison_pauses add column colour text;\ncreate table unpoison_new (a integer)")
    for module in ("sqlite", "postgresql"):
        monkeypatch.setattr(f"unpoison.store.{module}.MIGRATIONS", newer)
    store = opened(url)
    assert query(url, VERSION) == [(NEWEST + 1,)]
    assert query(url, "select count(colour), count(*) from unpoison_pauses") == [(0, 1)]
    assert [each.by for each in store.pauses()] == ["ada@desk"]
    store.close()


def test_tables_of_a_newer_version_are_refused_and_left_alone(url):
    opened(url).close()
    query(url, "update unpoison_store_version set version = 99")
    with pytest.raises(ConfigError, match=rf"newer unpoison \(store tables of version 99, this one knows {NEWEST}\)"):
        opened(url)
    assert query(url, VERSION) == [(99,)]


def test_without_create_missing_tables_are_refused_with_the_command_that_makes_them(url):
    query(url, "create table mine (a integer)")
    with pytest.raises(ConfigError, match=r"has no store tables of unpoison.*create=False.*unpoison migrate"):
        opened(url, create=False)
    run_script(url, choice.statements_for(url))
    opened(url, create=False).close()


def test_processes_that_open_a_new_store_at_once_agree(url):
    start = Gate("start")

    def use(number: int) -> None:
        start.wait()
        store = opened(url)
        store.pause(paused(source=f"orders-{number}"))
        store.close()

    children = [Child(partial(use, number)) for number in range(4)]
    start.open()
    assert [child.wait() for child in children] == [0] * 4
    assert (query(url, VERSION), query(url, "select count(*) from unpoison_pauses")) == ([(NEWEST,)], [(4,)])


def test_a_broker_and_its_store_in_one_file_have_a_version_each(tmp_path):
    file, url = tmp_path / "shop.db", f"sqlite:///{tmp_path}/shop.db"
    opened(url).close()
    broker = sqlite_files.opened(file, "orders")
    query(url, "update unpoison_store_version set version = 99")
    with pytest.raises(ConfigError, match="newer unpoison"):
        opened(url)
    broker.close()
    sqlite_files.opened(file, "orders").close()
    assert [name for (name,) in query(url, "select name from sqlite_master where type = 'table'") if "unpoison_" not in name] == [
        "sqlite_sequence"
    ]
