"""How fast is a queue in PostgreSQL, beside loops written by hand with psycopg?

The loops lease and delete a batch with one statement each, skip what others have leased, and are as durable as unpoison: what is
published is on disk, a lease and a finished message need not be. The server is a private one with its ordinary settings.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from bench.cases import orders
from bench.cases.isolation import drained_from, published_to
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, beside_first, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bench.harness.serving import served
from unpoison.body.payload import new_ids
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.model.message import Outgoing
from unpoison.port.broker import Settlement

MESSAGES = 50_000
BATCH = 256
AT_A_TIME = 1_000
BATCHES = 30
SIZES = (1_000, 100_000, 1_000_000)
PROBED = 5_000

_TABLE = """
create table queue (
    id bigint generated always as identity primary key, name text not null, key text, headers text, body bytea not null,
    published timestamptz not null default now(), lease integer);
create index queue_free on queue (id) where lease is null
"""
_LEASE = """
update queue set lease = 1 where id in (
    select id from queue where lease is null and id > %(last)s order by id limit %(batch)s for update skip locked)
returning id, body
"""
_COPY = "copy queue (name, body) from stdin (format binary)"


@benchmark("postgresql-drain", "PostgreSQL drained with isolation on, one worker, beside a loop by hand", rounds=11)
def drain(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "psycopg: update … returning 256, run, delete", "unpoison, isolated worker"
    with served("postgresql") as server:
        sides = {
            baseline: partial(child.run, "postgresql:raw_drain", Sample, url=server.url),
            ours: partial(child.run, "postgresql:unpoison_drain", Sample, url=server.url),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.9)})


@benchmark("postgresql-publish-many", "publish_many to PostgreSQL, 1,000 messages at a time, beside COPY and commit", rounds=11)
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "psycopg: copy 1,000, commit", "unpoison publish_many"
    with served("postgresql") as server:
        sides = {
            baseline: partial(child.run, "postgresql:raw_publish", Sample, url=server.url),
            ours: partial(child.run, "postgresql:unpoison_publish", Sample, url=server.url),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.5)})


@benchmark("postgresql-growth", "Fetch and settle on PostgreSQL, with others waiting or a transaction open elsewhere", rounds=5)
def growth(rounds: Rounds) -> Sequence[Row]:
    with served("postgresql") as server:
        sides = {
            f"{size:,} waiting": partial(child.run, "postgresql:probed", Sample, url=_filled(server.url, size)) for size in SIZES
        }
        open_one = partial(child.run, "postgresql:probed", Sample, url=_filled(server.url, SIZES[0]), is_open_elsewhere=True)
        taken = rounds.interleaved(sides | {"1,000 waiting, a transaction open elsewhere": open_one})
    return beside_first(taken)


def raw_drain(_: Path, url: str) -> Sample:
    with _raw(url) as connection:
        _copied(connection, orders.bodies(MESSAGES))
        decode, done, last = msgspec.json.Decoder().decode, 0, 0
        connection.execute("set synchronous_commit = off")
        with child.Stopwatch() as watch:
            while rows := connection.execute(_LEASE, {"last": last, "batch": BATCH}, binary=True).fetchall():
                for _, body in rows:
                    orders.handle(decode(body))
                found = [row[0] for row in rows]
                connection.execute("delete from queue where id = any (%s) and lease = 1", (found,))
                done, last = done + len(rows), max(found)
    if done != MESSAGES:
        raise AssertionError(f"{done} of {MESSAGES} messages were handled")
    return watch.sample(done)


def unpoison_drain(folder: Path, url: str) -> Sample:
    return drained_from(_fresh(url), folder, MESSAGES)


def raw_publish(_: Path, url: str) -> Sample:
    payloads, encode = [orders.order(number) for number in range(AT_A_TIME)], msgspec.json.Encoder().encode
    with _raw(url) as connection, child.Stopwatch() as watch:
        for _ in range(BATCHES):
            _copied(connection, [encode(payload) for payload in payloads])
    return watch.sample(BATCHES * AT_A_TIME)


def unpoison_publish(_: Path, url: str) -> Sample:
    return published_to(_fresh(url), BATCHES, AT_A_TIME)


def probed(_: Path, url: str, is_open_elsewhere: bool = False) -> Sample:
    """Fetch and settle some of what waits; as many are published first, so that the file stays as full as it was."""
    broker = PostgreSQLBroker(url)
    broker.open(["orders"])
    bodies = orders.bodies(PROBED)
    with psycopg.connect(url) as elsewhere:
        if is_open_elsewhere:
            elsewhere.execute("select pg_current_xact_id()")
        broker.publish([Outgoing(id_, "orders", body) for id_, body in zip(new_ids(PROBED), bodies, strict=True)])
        left = PROBED
        with child.Stopwatch() as watch:
            while left:
                got = broker.fetch("orders", min(100, left))
                broker.settle(Settlement(got))
                left -= len(got)
    broker.close()
    return watch.sample(PROBED)


def _fresh(url: str) -> str:
    """An empty database of its own on the server."""
    name = f"bench_{new_ids(1)[0].replace('-', '')}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return url.rpartition("/")[0] + f"/{name}"


@contextmanager
def _raw(url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with psycopg.connect(_fresh(url), autocommit=True, prepare_threshold=0) as connection:
        connection.execute(_TABLE, prepare=False)
        yield connection


def _copied(connection: "psycopg.Connection[tuple[Any, ...]]", bodies: Sequence[bytes]) -> None:
    with connection.cursor().copy(_COPY) as copy:
        copy.set_types(["text", "bytea"])
        for row in zip(new_ids(len(bodies)), bodies, strict=True):
            copy.write_row(row)


def _filled(url: str, size: int) -> str:
    """A database in which so many messages wait."""
    made = _fresh(url)
    broker = PostgreSQLBroker(made)
    broker.open(["orders"])
    with broker.connection.use() as run:
        run.execute(
            "insert into unpoison_line (source, id, body) select 1, md5(n::text), %s from generate_series(1, %s) as n",
            (orders.bodies(1)[0], size),
        )
    broker.close()
    return made
