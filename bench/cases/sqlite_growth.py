"""Does a message cost more when the file is full?

Files are made that hold 1,000, 100,000 and 1,000,000 other messages, all waiting behind, all delayed or all dead. In each
of them 10,000 messages are published, fetched and settled; what is timed is fetch and settle, on the broker itself.
"""

import sqlite3
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.cases import orders
from bench.harness import child
from bench.harness.figures import Goal, Row, Sample, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison.body.payload import new_ids
from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.model.message import Outgoing
from unpoison.port.broker import Settlement

SIZES = (1_000, 100_000, 1_000_000)
MESSAGES = 10_000
BATCH = 100
PASSES = 3

FLAT = Goal("ratio", "≤", 1.25)

_NUMBERS = "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)"
_ID = "printf('019a0000-0000-7000-8000-%012d', n)"

FILLED_WITH = {
    "waiting": f"""{_NUMBERS} insert into unpoison_line (position, id, body, published)
        select :source * {POSITIONS} + n, {_ID}, :body, :now from numbers""",
    "delayed": f"""{_NUMBERS} insert into unpoison_waiting (source, due, id, body, published)
        select :source, :now + 86400 + n, {_ID}, :body, :now from numbers""",
    "dead": f"""{_NUMBERS} insert into unpoison_dead (source, state, replays, fingerprint, id, body, record)
        select :source, 'dead', 0, 'f00d', {_ID}, :body, :record from numbers""",
}


@benchmark("sqlite-growth", "Fetch and settle of 10,000 messages, with others in the same file", rounds=5)
def growth(rounds: Rounds) -> Sequence[Row]:
    rows: list[Row] = []
    for kind in FILLED_WITH:
        with tempfile.TemporaryDirectory(prefix="unpoison-bench-", dir=child.scratch()) as folder:
            sides = {f"{size:,} {kind}": _side(Path(folder), kind, size) for size in SIZES}
            rows += _rows(rounds.interleaved(sides))
    return rows


def _side(folder: Path, kind: str, size: int) -> "partial[Sample]":
    file = folder / f"{kind}-{size}.db"
    _fill(file, kind, size)
    return partial(child.run, "sqlite_growth:fetch_and_settle", Sample, file=str(file))


def _rows(samples: dict[str, list[Sample]]) -> list[Row]:
    """Here the ratio is of time per message, so that more is worse."""
    smallest, *_ = samples
    return [
        Row(
            label=label,
            figure=Spread.of([sample.seconds / sample.messages * 1e6 for sample in taken]),
            unit="µs per message",
            ratio=Spread.of([theirs.rate / mine.rate for mine, theirs in zip(taken, samples[smallest], strict=True)]),
            goal=None if label == smallest else FLAT,
        )
        for label, taken in samples.items()
    ]


def _fill(file: Path, kind: str, size: int) -> None:
    broker = SQLiteBroker(f"sqlite:///{file}")
    broker.open(["orders"])
    number = broker.numbers["orders"]
    broker.close()
    values = {"count": size, "source": number, "body": orders.bodies(1)[0], "now": time.time(), "record": "r" * 1_500}
    connection = sqlite3.connect(file)
    connection.execute("pragma synchronous=off")
    with connection:
        connection.execute(FILLED_WITH[kind], values)
        if kind == "waiting":
            connection.execute("update unpoison_sources set last = ? where no = ?", (size, number))
    connection.close()


def fetch_and_settle(_folder: Path, file: str) -> Sample:
    """As many are published as are taken, so that the file stays as full as it was."""
    broker = SQLiteBroker(f"sqlite:///{file}")
    broker.open(["orders"])
    body = orders.bodies(1)[0]
    seconds = cpu = 0.0
    for _ in range(PASSES):
        broker.publish([Outgoing(id_, "orders", body) for id_ in new_ids(MESSAGES)])
        with child.Stopwatch() as watch:
            for _ in range(MESSAGES // BATCH):
                deliveries = broker.fetch("orders", BATCH)
                if len(deliveries) != BATCH:
                    raise AssertionError(f"fetch returned {len(deliveries)} messages instead of {BATCH}")
                broker.settle(Settlement(gone=deliveries))
        seconds, cpu = seconds + watch.seconds, cpu + watch.cpu
    broker.close()
    return Sample(PASSES * MESSAGES, seconds, cpu)
