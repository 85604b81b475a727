"""The tables know their version: older files are brought up to date, newer ones are left alone."""

import sqlite3
from contextlib import closing
from functools import partial

import pytest

from tests.unit.sqlite_files import dump, opened, query
from unpoison.brokers.sqlite import schema
from unpoison.errors import ConfigError
from unpoison.testing import given
from unpoison.testing.processes import Child, Gate

NEWEST = len(schema.MIGRATIONS)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "shop.db"


def test_a_new_file_gets_the_newest_version(file):
    opened(file).close()
    assert query(file, "select version from unpoison_version") == [(NEWEST,)]


def test_opening_a_file_again_changes_nothing(file):
    opened(file, "orders").close()
    before = dump(file)
    opened(file, "orders").close()
    assert dump(file) == before


def test_a_file_of_an_older_version_is_brought_up_to_date_and_keeps_its_messages(file, monkeypatch):
    broker = opened(file, "orders")
    broker.publish(given.messages("orders", 3))
    broker.close()
    newer = (*schema.MIGRATIONS, "alter table unpoison_line add column colour text;\ncreate table unpoison_new (a integer)")
    monkeypatch.setattr(schema.migrate, "__kwdefaults__", {**(schema.migrate.__kwdefaults__ or {}), "migrations": newer})
    broker = opened(file, "orders")
    assert query(file, "select version from unpoison_version") == [(NEWEST + 1,)]
    assert query(file, "select count(colour), count(*) from unpoison_line") == [(0, 3)]
    broker.close()


def test_a_migration_that_fails_changes_nothing(file, monkeypatch):
    opened(file, "orders").close()
    before = dump(file)
    broken = (*schema.MIGRATIONS, "create table unpoison_new (a integer);\ncreate table unpoison_new (a integer)")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection, pytest.raises(sqlite3.OperationalError):
        schema.migrate(connection, str(file), create=True, migrations=broken)
    assert dump(file) == before


def test_a_file_of_a_newer_version_is_refused_and_left_alone(file):
    opened(file, "orders").close()
    query(file, "update unpoison_version set version = 99")
    before = dump(file)
    with pytest.raises(ConfigError, match=rf"newer unpoison \(tables of version 99, this one knows {NEWEST}\).*Upgrade unpoison"):
        opened(file, "orders")
    assert dump(file) == before


def test_processes_that_open_a_new_file_at_once_agree(file):
    start = Gate("start")

    def use(number: int) -> None:
        start.wait()
        broker = opened(file, "orders", f"own-{number}")
        broker.publish(given.messages("orders", 10))
        broker.close()

    children = [Child(partial(use, number)) for number in range(8)]
    start.open()
    assert [child.wait() for child in children] == [0] * 8
    assert query(file, "select version from unpoison_version") == [(NEWEST,)]
    assert query(file, "select count(*) from unpoison_line") == [(80,)]
    assert query(file, "select count(*) from unpoison_sources") == [(9,)]


def test_without_create_a_missing_file_is_refused_and_not_made(file):
    with pytest.raises(ConfigError, match="does not exist"):
        opened(file, create=False)
    assert not file.exists()


def test_without_create_a_file_without_tables_is_refused_and_left_alone(file):
    query(file, "create table mine (a integer)")
    with pytest.raises(ConfigError, match=f"has no tables of unpoison, this unpoison needs version {NEWEST}.*unpoison migrate"):
        opened(file, create=False)
    assert query(file, "select name from sqlite_master") == [("mine",)]


def test_without_create_a_missing_source_is_refused_with_the_statement_that_makes_it(file):
    opened(file, "orders").close()
    with pytest.raises(ConfigError, match=r"'parcels' does not exist.*\ninsert or ignore into unpoison_sources") as refused:
        opened(file, "parcels", create=False)
    assert query(file, "select name from unpoison_sources") == [("orders",)]
    query(file, str(refused.value).partition("run there:\n")[2])
    opened(file, "parcels", create=False).close()


def test_the_file_can_be_the_applications_own_database(file):
    with closing(sqlite3.connect(file)) as own:
        own.execute("create table orders (id integer primary key, total real)")
        own.execute("insert into orders values (1, 9.99)")
        own.commit()
        broker = opened(file, "orders")
        broker.publish(given.messages("orders", 1))
        own.execute("insert into orders values (2, 1.0)")
        own.commit()
        assert len(broker.fetch("orders", 10)) == 1
        broker.close()
        assert own.execute("select count(*) from orders").fetchone() == (2,)
        names = [name for (name,) in own.execute("select name from sqlite_master where type = 'table'")]
    assert all(name.startswith(("unpoison_", "sqlite_")) or name == "orders" for name in names)
