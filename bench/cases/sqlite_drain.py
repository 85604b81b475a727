"""How fast is a full SQLite queue drained, beside loops written by hand?

All sides open the file, take every message in batches of a hundred, decode its JSON, call the handler, remove the message,
and close the file; all of that is timed.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from bench.cases import orders, raw_queue
from bench.cases.raw_queue import BATCH
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from bezoar import App
from bezoar.payload import new_ids

MESSAGES = 100_000

LEASE_TAKE = f"select position, body from queue where lease is null order by position limit {BATCH}"
LEASE_MARK = "update queue set lease = 1 where position between ? and ?"
LEASE_REMOVE = "delete from queue where position between ? and ? and lease = 1"
POP_TAKE = f"select position, body from queue order by position limit {BATCH}"
POP_REMOVE = "delete from queue where position between ? and ?"


@benchmark("sqlite-drain", "SQLite drained in inline mode, beside loops on the sqlite3 module")
def drain(rounds: Rounds) -> Sequence[Row]:
    baseline = "sqlite3: lease 100 rows, run, delete them"
    same_batch = "bezoar, 100 at a time"
    sides = {
        baseline: partial(child.run, "sqlite_drain:raw_lease", Sample),
        same_batch: partial(child.run, "sqlite_drain:bezoar", Sample, prefetch=BATCH),
        "bezoar, as it comes (256 at a time)": partial(child.run, "sqlite_drain:bezoar", Sample),
        "sqlite3: no lease, file locked while handlers run": partial(child.run, "sqlite_drain:raw_pop", Sample),
    }
    return compared(rounds.interleaved(sides), baseline, {same_batch: Goal("ratio", "≥", 0.9)})


def bezoar(folder: Path, prefetch: int | None = None) -> Sample:
    """The real thing: an app, its run, its consumer, its guard, its ownership, its bell."""
    app = App(f"sqlite:///{folder}/bezoar.db", prefetch=prefetch)
    app.publish_many("orders", map(orders.order, range(MESSAGES)))
    app.close()
    app.consumer("orders", isolation="inline")(orders.handle)
    with child.Stopwatch() as watch:
        run = app.run(until_empty=True)
    return watch.sample(_all(run.tallies()["orders"].done))


def raw_lease(folder: Path) -> Sample:
    """Two transactions per batch: mark the rows as taken, then, when they are handled, delete them."""
    _preloaded(folder)
    handle, decode, done = orders.handle, msgspec.json.Decoder().decode, 0
    with child.Stopwatch() as watch:
        connection = raw_queue.opened(folder, "normal")
        run = connection.execute
        while True:
            run("begin immediate")
            rows = run(LEASE_TAKE).fetchall()
            if rows:
                run(LEASE_MARK, (rows[0][0], rows[-1][0]))
            run("commit")
            if not rows:
                break
            for _, body in rows:
                handle(decode(body))
            run("begin immediate")
            run(LEASE_REMOVE, (rows[0][0], rows[-1][0]))
            run("commit")
            done += len(rows)
        connection.close()
    return watch.sample(_all(done))


def raw_pop(folder: Path) -> Sample:
    """One transaction per batch, open while handlers run: nobody else can publish or consume meanwhile."""
    _preloaded(folder)
    handle, decode, done = orders.handle, msgspec.json.Decoder().decode, 0
    with child.Stopwatch() as watch:
        connection = raw_queue.opened(folder, "normal")
        run = connection.execute
        while True:
            run("begin immediate")
            rows = run(POP_TAKE).fetchall()
            if rows:
                run(POP_REMOVE, (rows[0][0], rows[-1][0]))
            for _, body in rows:
                handle(decode(body))
            run("commit")
            if not rows:
                break
            done += len(rows)
        connection.close()
    return watch.sample(_all(done))


def _preloaded(folder: Path) -> None:
    ids, bodies = new_ids(MESSAGES), orders.bodies(MESSAGES)
    raw_queue.create(folder, ((id_, None, None, body, 0.0) for id_, body in zip(ids, bodies, strict=True)))


def _all(done: int) -> int:
    if done != MESSAGES:
        raise AssertionError(f"{done} of {MESSAGES} messages were handled")
    return done
