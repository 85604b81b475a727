import sqlite3

import psycopg

from tests.e2e.command_line import unpoison


def test_it_makes_the_tables_and_can_be_run_again(tmp_path, postgresql):
    url = postgresql.fresh()
    for _ in range(2):
        ended = unpoison("migrate", url, cwd=tmp_path)
        assert (ended.code, ended.text.strip()) == (0, f"The tables in {url} are up to date.")
    with psycopg.connect(url) as connection:
        assert connection.execute("select count(*) from unpoison_line").fetchone() == (0,)


def test_the_statements_that_it_prints_make_the_same_tables(tmp_path, postgresql):
    printed = unpoison("migrate", "--sql", "postgresql://", cwd=tmp_path)
    assert printed.code == 0
    made, own = postgresql.fresh(), postgresql.fresh()
    assert unpoison("migrate", made, cwd=tmp_path).code == 0
    with psycopg.connect(own, autocommit=True) as connection:
        connection.execute(printed.text)
    query = (
        "select table_name, column_name, data_type from information_schema.columns "
        "where table_name like 'unpoison%' order by 1, 2"
    )
    with psycopg.connect(made) as one, psycopg.connect(own) as other:
        assert one.execute(query).fetchall() == other.execute(query).fetchall()


def test_the_statements_for_sqlite_too(tmp_path):
    (tmp_path / "made.sql").write_text(unpoison("migrate", "--sql", "sqlite:///x.db", cwd=tmp_path).text)
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript((tmp_path / "made.sql").read_text())
    connection.close()
    assert unpoison("publish", "sqlite:///shop.db", "orders", "{}", cwd=tmp_path).code == 0


def test_a_broker_without_tables_says_so(tmp_path):
    ended = unpoison("migrate", "memory://", cwd=tmp_path)
    assert ended.code == 1
    assert "has no tables" in ended.err
