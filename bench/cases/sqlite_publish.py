"""How fast is publishing to SQLite, beside inserts written by hand?

Both sides encode the same payloads with the same encoder, give every message an id of the same kind, write the same
columns, and sync to the disk before they go on.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from bench.cases import orders, raw_queue
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison import App
from unpoison.body.payload import new_id, new_ids

AT_A_TIME = 1_000
BATCHES = 50
SINGLES = 3_000

ENOUGH = Goal("ratio", "≥", 0.7)


@benchmark("sqlite-publish-many", "publish_many, 1,000 messages at a time, beside executemany")
def publish_many(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "sqlite3: begin, executemany, commit", "unpoison publish_many"
    sides = {
        baseline: partial(child.run, "sqlite_publish:raw_many", Sample),
        ours: partial(child.run, "sqlite_publish:unpoison_many", Sample),
    }
    return compared(rounds.interleaved(sides), baseline, {ours: ENOUGH})


@benchmark("sqlite-publish", "publish, one message at a time, beside insert and commit")
def publish(rounds: Rounds) -> Sequence[Row]:
    baseline, ours = "sqlite3: begin, insert, commit", "unpoison publish"
    sides = {
        baseline: partial(child.run, "sqlite_publish:raw_one", Sample),
        ours: partial(child.run, "sqlite_publish:unpoison_one", Sample),
    }
    return compared(rounds.interleaved(sides), baseline, {ours: ENOUGH})


def unpoison_many(folder: Path) -> Sample:
    app, payloads = _app(folder), [orders.order(number) for number in range(AT_A_TIME)]
    with child.Stopwatch() as watch:
        for _ in range(BATCHES):
            app.publish_many("orders", payloads)
    app.close()
    return watch.sample(BATCHES * AT_A_TIME)


def unpoison_one(folder: Path) -> Sample:
    app, payload = _app(folder), orders.order(1)
    with child.Stopwatch() as watch:
        for _ in range(SINGLES):
            app.publish("orders", payload)
    app.close()
    return watch.sample(SINGLES)


def raw_many(folder: Path) -> Sample:
    raw_queue.create(folder / "raw.db")
    connection, payloads = raw_queue.opened(folder / "raw.db", "full"), [orders.order(number) for number in range(AT_A_TIME)]
    run, encode = connection.execute, msgspec.json.Encoder().encode
    with child.Stopwatch() as watch:
        for _ in range(BATCHES):
            now = time.time()
            ids = new_ids(len(payloads))
            run("begin immediate")
            connection.executemany(
                raw_queue.INSERT,
                [(id_, None, None, encode(payload), now) for id_, payload in zip(ids, payloads, strict=True)],
            )
            run("commit")
    connection.close()
    return watch.sample(BATCHES * AT_A_TIME)


def raw_one(folder: Path) -> Sample:
    raw_queue.create(folder / "raw.db")
    connection, payload = raw_queue.opened(folder / "raw.db", "full"), orders.order(1)
    run, encode = connection.execute, msgspec.json.Encoder().encode
    with child.Stopwatch() as watch:
        for _ in range(SINGLES):
            run("begin immediate")
            run(raw_queue.INSERT, (new_id(), None, None, encode(payload), time.time()))
            run("commit")
    connection.close()
    return watch.sample(SINGLES)


def _app(folder: Path) -> App:
    """Open already, as the raw side is."""
    app = App(f"sqlite:///{folder}/unpoison.db")
    app.publish("orders", {})
    return app
