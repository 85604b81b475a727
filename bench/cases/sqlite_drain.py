"""How fast is a full SQLite queue drained, beside loops written by hand?

All sides get a file with the same messages. They open it, take every message, decode its JSON, call the handler, remove the
message, and close the file; all of that is timed.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.cases import orders, raw_queue
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, compared
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison import App
from unpoison.body.payload import new_ids

MESSAGES = 200_000


@benchmark("sqlite-drain", "SQLite drained in inline mode, beside loops on the sqlite3 module", rounds=7)
def drain(rounds: Rounds) -> Sequence[Row]:
    baseline = "sqlite3: update … returning 100, run, delete"
    ours = "unpoison"
    with tempfile.TemporaryDirectory(prefix="unpoison-bench-", dir=child.scratch()) as folder:
        by_hand, by_us = fill_raw(Path(folder)), fill_unpoison(Path(folder))
        side = partial(partial, child.run)
        sides = {
            baseline: side("sqlite_drain:raw", Sample, file=by_hand, loop="lease_and_delete"),
            ours: side("sqlite_drain:unpoison", Sample, file=by_us),
            "unpoison, 100 at a time": side("sqlite_drain:unpoison", Sample, file=by_us, prefetch=raw_queue.BATCH),
            "sqlite3, tuned: select 100, update the range": side(
                "sqlite_drain:raw", Sample, file=by_hand, loop="lease_range_and_delete"
            ),
            "sqlite3, no lease: file locked while handlers run": side("sqlite_drain:raw", Sample, file=by_hand, loop="pop"),
        }
        return compared(rounds.interleaved(sides), baseline, {ours: Goal("ratio", "≥", 0.9)})


def fill_raw(folder: Path) -> str:
    file = folder / "raw.db"
    ids, bodies = new_ids(MESSAGES), orders.bodies(MESSAGES)
    raw_queue.create(file, ((id_, None, None, body, 0.0) for id_, body in zip(ids, bodies, strict=True)))
    return str(file)


def fill_unpoison(folder: Path) -> str:
    file = folder / "unpoison.db"
    app = App(f"sqlite:///{file}")
    for at in range(0, MESSAGES, 10_000):
        app.publish_many("orders", map(orders.order, range(at, at + 10_000)))
    app.close()
    return str(file)


def unpoison(folder: Path, file: str, prefetch: int | None = None) -> Sample:
    """The real thing: an app, its run, its consumer, its guard, its ownership, its bell."""
    app = App(f"sqlite:///{_copy(file, folder)}", prefetch=prefetch)
    app.consumer("orders", isolation="inline")(orders.handle)
    with child.Stopwatch() as watch:
        result = app.run(until_empty=True)
    return watch.sample(_all(result.sources["orders"].done))


def raw(folder: Path, file: str, loop: str) -> Sample:
    copy = _copy(file, folder)
    with child.Stopwatch() as watch:
        done = getattr(raw_queue, loop)(copy, orders.handle)
    return watch.sample(_all(done))


def raw_lease(folder: Path) -> Sample:
    """The loop that drains are compared with, on a file of its own."""
    return raw(folder, fill_raw(folder), "lease_and_delete")


def _copy(file: str, folder: Path) -> Path:
    """On the disk already when it is used: otherwise the first checkpoint would pay for the copying."""
    copy = folder / "queue.db"
    shutil.copyfile(file, copy)
    with copy.open("rb") as written:
        os.fsync(written)
    return copy


def _all(done: int) -> int:
    if done != MESSAGES:
        raise AssertionError(f"{done} of {MESSAGES} messages were handled")
    return done
