"""How do the tests of the store make stores whose clock they hold, and what do they put into them?"""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from unpoison.control.source import SourceControl
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.store.choice import store_for
from unpoison.store.port import OPEN, OPERATOR, ConsumerSign, Pause, SharedCircuit
from unpoison.store.sql_store import SQLStore


@dataclass
class Clock:
    """Shared by the consumers of a test and their store."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


_numbers = itertools.count()


def in_new_schema(database: str) -> str:
    """The URL of a schema with nothing in it: cheaper than a database."""
    schema = f"fleet_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
    return f"{database}?options={quote(f'-c search_path={schema}')}"


def new_store(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a database of the kind that the test asks for by its parameter, with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:///{folder}/fleet.db"
    return in_new_schema(request.getfixturevalue("database"))


def opened(url: str, clock: Clock | None = None, *, create: bool = True) -> SQLStore:
    store = store_for(url)
    assert isinstance(store, SQLStore)
    if clock is not None:
        store._database.now = lambda run: clock()  # of PostgreSQL it is the server's otherwise, which no test can set
    store.open(create=create)
    return store


def sign(consumer: str = "a:1", version: str | None = None, state: str = "running", source: str = "orders") -> ConsumerSign:
    return ConsumerSign(consumer, source, version, 0.0, 0.0, state)


def paused(kind: str = OPERATOR, source: str = "orders", **facts) -> Pause:
    return Pause(source, kind, facts.pop("reason", "stock-taking"), facts.pop("by", "ada@desk"), **facts)


def outage(clock: Clock, dependency: str = "billing:443", **facts) -> SharedCircuit:
    known = {"is_named": True, "state": OPEN, "messages": 10, "samples": ("refused",), "by": "a:1", "interval": 1.0}
    times = {"since": clock.now - 2, "next_probe_at": clock.now + 1, "heard_at": clock.now}
    return SharedCircuit(**{"source": "orders", "dependency": dependency, **known, **times, **facts})


def too_many_dead(control: SourceControl, now: float) -> None:
    """A bad deploy: everything is to become a dead letter."""
    bug = Failure(classification=ErrorClassification.BUG, rule="bug", type_name="KeyError", text="total")
    for number in range(60):
        dying = Delivery(None, "orders", f"dying-{number}", b"")
        control.admit([dying], now)
        control.ended([], 1, now)
        control.refuses_letter(dying, bug, now)
