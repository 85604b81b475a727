"""Rows of any origin in the tables of SQLite and PostgreSQL, written without unpoison."""

import sqlite3
from contextlib import closing

import psycopg
from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.contract.labs import SQLiteLab
from tests.contract.postgresql_lab import PostgreSQLLab
from tests.envelopes.generated import ODD_BYTES, STEADY, envelopes, some_bytes, texts
from tests.envelopes.surviving import survives
from unpoison.brokers.sqlite.file import path_of
from unpoison.brokers.sqlite.schema import POSITIONS

COLUMNS = ["id", "key", "headers", "counters", "alone"]
STORABLE = texts.map(lambda text: "".join(filter(str.isprintable, text)))
IN_SQLITE = some.one_of(
    texts, some.sampled_from(ODD_BYTES), some.sampled_from([-1, 0, 5]), some.none(), some.sampled_from(["not UTF-8"])
)


def send_to_sqlite(lab, batch):
    """Every second one into the line, the others among those that wait for another start."""
    lab.broker("orders")
    with closing(sqlite3.connect(path_of(lab.url), isolation_level=None)) as run:
        for number, each in enumerate(batch):
            found = dict(each.fields)
            found["id"] = "unnamed" if found.get("id") is None else found["id"]
            body = b"" if each.body(number) is None else each.body(number)
            source = run.execute("select no from unpoison_sources where name = 'orders'").fetchone()[0]
            if number % 2:
                run.execute("update unpoison_sources set last = last + 1 where no = ?", (source,))
                last = run.execute("select last from unpoison_sources where no = ?", (source,)).fetchone()[0]
                row = (source * POSITIONS + last, *_cast(found, "id", "key", "headers"), body)
                run.execute("insert into unpoison_line values (?, cast(? as text), cast(? as text), cast(? as text), ?, 0)", row)
            else:
                row = (source, "alone" in found, found.get("counters"), *_cast(found, "id", "key", "headers"), body)
                run.execute(
                    "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
                    "values (?, 0, ?, ?, cast(? as text), cast(? as text), cast(? as text), ?, 0)",
                    row,
                )


def _cast(found, *names):
    """Bytes that are cast to text stay what they are: this is how text comes into a file that is not UTF-8."""
    values = [found.get(name) for name in names]
    return [b"\xff\xfe" if value == "not UTF-8" else value for value in values]


@STEADY
@for_all(
    envelopes(
        some.tuples(some.sampled_from(COLUMNS), IN_SQLITE),
        tails=some.one_of(some.none(), some.sampled_from([-1, 0, 7, 2**62]), some_bytes),
        keys=some.none(),
    )
)
def test_sqlite_survives_whatever_is_in_the_tables(tmp_path_factory, batch):
    with SQLiteLab(tmp_path_factory.mktemp("lab")) as lab:
        survives(lab, batch, lambda batch: send_to_sqlite(lab, batch))


def send_to_postgresql(lab, batch):
    lab.broker("orders")
    with psycopg.connect(lab.url, autocommit=True) as run:
        (source,) = run.execute("select no from unpoison_sources where name = 'orders'").fetchone()
        for number, each in enumerate(batch):
            found = dict(each.fields)
            row = (source, found.get("id") or "unnamed", found.get("key"), found.get("headers"), each.body(number))
            if number % 2:
                run.execute("insert into unpoison_line (source, id, key, headers, body) values (%s, %s, %s, %s, %s)", row)
            else:
                run.execute(
                    "insert into unpoison_waiting (source, id, key, headers, body, due, alone, counters) "
                    "values (%s, %s, %s, %s, %s, now(), %s, %s)",
                    (*row, "alone" in found, found.get("counters")),
                )


@STEADY
@for_all(envelopes(some.tuples(some.sampled_from(COLUMNS), STORABLE), keys=some.none()))
def test_postgresql_survives_whatever_is_in_the_tables(postgresql, tmp_path_factory, batch):
    with PostgreSQLLab(tmp_path_factory.mktemp("lab"), postgresql.fresh()) as lab:
        survives(lab, batch, lambda batch: send_to_postgresql(lab, batch))
