"""The cost of a message does not grow with what else the file holds: every statement on its way finds its rows by key."""

import re
import sqlite3
import time
from contextlib import closing

import pytest

from tests.unit.sqlite_files import opened, query
from unpoison.brokers.sqlite.bell import Bell
from unpoison.brokers.sqlite.deadletters import SQLiteDeadLetters
from unpoison.model.message import Counters
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given

NO_PLAN = ("begin", "commit", "rollback", "pragma", "--")
SMALL = ("unpoison_owners", "unpoison_leases")
"""Have one row for each consumer that runs and for each batch that is out, whatever is in the file."""


def test_no_statement_on_the_way_of_a_message_looks_at_more_than_it_needs(tmp_path):
    file = tmp_path / "shop.db"
    used = _statements_of_a_life(file)
    assert len(used) > 25
    assert _scans(file, used) == {}


def test_that_holds_after_the_application_has_analysed_its_database(tmp_path):
    file = tmp_path / "shop.db"
    used = _statements_of_a_life(file)
    broker = opened(file, "orders", "others")
    broker.publish([*given.messages("orders", 2000), *given.messages("orders", 2000, delay=3600), *given.messages("others", 3)])
    held = broker.fetch("orders", 1000)
    broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery)) for delivery in held[:500]]))
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1)) for delivery in held[500:700]]))
    query(file, "analyze")
    assert query(file, "select count(*) from sqlite_stat1")[0][0] > 0
    assert _scans(file, used) == {}
    broker.close()


@pytest.mark.parametrize("state", ["dead", None])
def test_a_page_of_letters_is_found_without_sorting_the_others(tmp_path, state):
    file, used = tmp_path / "shop.db", {}
    broker = opened(file, "orders")
    broker._connection.set_trace_callback(used.setdefault)
    SQLiteDeadLetters(broker, "orders").browse(after="orders-5", until="orders-9", state=state)
    assert _scans(file, [statement for statement in used if "unpoison_dead" in statement]) == {}
    broker.close()


def test_the_test_notices_a_scan(tmp_path):
    file = tmp_path / "shop.db"
    opened(file).close()
    assert _scans(file, ["select * from unpoison_line where id = 'x'"]) != {}
    assert _scans(file, ["select * from unpoison_waiting where source = 1 and alone = 0 and owner is null order by id"]) != {}


def _statements_of_a_life(file) -> list[str]:
    """Every statement that is run while messages are published, taken, done, retried, buried, left behind and replayed."""
    used: dict[str, None] = {}
    broker = opened(file, "orders")
    broker._connection.set_trace_callback(used.setdefault)
    broker.publish([*given.messages("orders", 6), *given.messages("orders", 1, delay=5)])
    broker.fetch("orders", 1)
    broker._clock = lambda: time.time() + 10
    first, second, third, *rest = broker.fetch("orders", 10)
    broker.settle(Settlement([first], [Kept(second, Counters(attempts=1))], [Dead(third, given.letter_of(third))]))
    (again,) = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(again, Counters(attempts=2))]))
    (again,) = broker.fetch("orders", 10)
    broker.settle(Settlement(gone=[again]))
    broker.extend(rest)
    SQLiteDeadLetters(broker, "orders").replay(["orders-1"])
    broker.fetch("orders", 10)
    broker.close()
    other = opened(file, "orders")
    other._connection.set_trace_callback(used.setdefault)
    assert other.fetch("orders", 10)
    assert list(other.fetch("orders", 10)) == []
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.set_trace_callback(used.setdefault)
        bell = Bell(str(file), [1], lambda: None, lambda connection: False)
        bell._next_due(connection)
        bell.close()
    other.close()
    return [statement for statement in used if not statement.lower().startswith(NO_PLAN)]


def _scans(file, statements) -> dict[str, list[str]]:
    """The statements whose plan goes through a whole table or index, or sorts; with that part of the plan. (`json_each` is the
    list of rows that was asked for.)"""
    found = {}
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in statements:
            plan = [row[3] for row in connection.execute(f"explain query plan {statement}")]
            if bad := [
                step for step in plan if re.match(r"SCAN (?!CONSTANT|json_each )|USE TEMP", step) and not step.endswith(SMALL)
            ]:
                found[statement] = bad
    return found
