"""What does a command on a large DLQ cost? Counted in requests to the server and in letters that were read, never in seconds."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg

from unpoison.brokers.kafka import letters as kafka_letters
from unpoison.brokers.kafka.cluster_queries import ClusterQueries
from unpoison.brokers.kafka.connection import Connection, Reader
from unpoison.brokers.nats import copies as nats_copies
from unpoison.brokers.nats.connection import Connection as NATSConnection
from unpoison.brokers.redis.connection import Connection as Redis
from unpoison.brokers.sqlite import broker as sqlite
from unpoison.port import serialization, sql

REQUESTS: dict[str, list[tuple[Any, str]]] = {
    "postgresql": [(psycopg.Cursor, "execute"), (psycopg.Cursor, "executemany")],
    "redis": [(Redis, "try_all")],
    "nats": [(NATSConnection, "expect")],  # one for each question that is not the storing of a message
    "kafka": [(ClusterQueries, "ends"), (Connection, "store"), (Reader, "read")],
}
READ: list[tuple[Any, str]] = [(serialization, "letter"), (sql, "letter"), (nats_copies, "read"), (kafka_letters, "read_letter")]


@contextlib.contextmanager
def costs(url: str, monkeypatch) -> Iterator[Counter[str]]:
    """How many requests were made, and how many letters were read, while the block lasted."""
    broker, found = url.partition(":")[0], Counter[str]()
    with monkeypatch.context() as patches:
        for place, name in REQUESTS.get(broker, ()):
            patches.setattr(place, name, _counted(getattr(place, name), found, "requests"))
        for place, name in READ:
            patches.setattr(place, name, _counted(getattr(place, name), found, "letters"))
        if broker == "sqlite":
            patches.setattr(sqlite, "connect", _traced(vars(sqlite)["connect"], found))
        yield found


def _counted(call, found, what):
    def counted(*arguments, **options):
        found[what] += 1
        return call(*arguments, **options)

    return counted


def _traced(connect, found):
    def traced(*arguments, **options):
        connection = connect(*arguments, **options)
        # One statement that is given many rows is traced once for each of them.
        connection.set_trace_callback(lambda text: text.startswith("insert") or found.update(["requests"]))
        return connection

    return traced
