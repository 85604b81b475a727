"""How fast are dead letters found in the store, and does it depend on how many there are?

A store in a SQLite file gets 10,000 letters through `put`, is brought to 100,000 and 1,000,000 by copying them in SQL, and
is asked: each question a few times, on a warm cache, of which the median counts. What is put and indexed is timed on its own.
`BENCH_LETTERS` limits how many letters there are.
"""

import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from bench.harness import child
from bench.harness.figures import Goal, Row, Spread
from bench.harness.registry import benchmark
from bench.harness.rounds import Rounds
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import Message
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.rows import CONTENTS, LETTER
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.letters.values import Order

PUT = 10_000
SIZES = (10_000, 100_000, 1_000_000)
BATCH, ASKED = 1_000, 7
GROUPS = 200
NOW = 1_800_000_000.0
AT_ONCE = Goal("figure", "<", 100.0)
"""Milliseconds."""
WITHOUT_INDEX, WITH_INDEX = Goal("figure", "≥", 10_000), Goal("figure", "≥", 2_000)


class Asked(msgspec.Struct, frozen=True):
    """What one store has answered: milliseconds for each question, letters put and indexed per second, and bytes per letter."""

    took: dict[str, float]
    put: float
    indexed: float
    bytes_each: float


@benchmark("stored-letters", "Dead letters in a store in a SQLite file: one question", rounds=1)
def stored_letters(rounds: Rounds) -> Sequence[Row]:
    most = int(os.environ.get("BENCH_LETTERS", SIZES[-1]))
    sizes = [size for size in SIZES if size <= most]
    taken: dict[int, list[Asked]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="unpoison-bench-", dir=child.scratch()) as folder:
            ask = {"": lambda size=size, folder=folder: child.run("stored_letters:asked", Asked, folder=folder, size=size)}
            taken[size] = rounds.interleaved(ask)[""]  # type: ignore[arg-type]
    rows = [
        Row(
            "put, without the index of texts", Spread.of([each.put for each in taken[sizes[0]]]), "letters/s", goal=WITHOUT_INDEX
        ),
        Row("put and indexed", Spread.of([_both(each) for each in taken[sizes[0]]]), "letters/s", goal=WITH_INDEX),
    ]
    for question in _questions():
        for size in sizes:
            figure = Spread.of([each.took[question] for each in taken[size]])
            rows.append(Row(f"{question}, {size:,} letters", figure, "ms", goal=AT_ONCE))
    rows += [
        Row(f"file, {size:,} letters", Spread.of([each.bytes_each for each in taken[size]]), "bytes per letter") for size in sizes
    ]
    return rows


def _both(asked: Asked) -> float:
    return 1 / (1 / asked.put + 1 / asked.indexed)


def _questions() -> Mapping[str, Callable[[LetterStore], object]]:
    def where(text: str) -> Filter:
        return Filter.parse(text)

    return {
        "list, newest first": lambda store: store.page(state="dead"),
        "list of a source": lambda store: store.page(where("source:orders"), state="dead"),
        "list of a group": lambda store: store.page(where("group:9-00000000000a"), state="dead"),
        "list as they arrived": lambda store: store.page(state="dead", order=Order.ARRIVAL),
        "list by age": lambda store: store.page(where("age>5d class:permanent"), state="dead", now=NOW),
        "one step of paging": _step,
        "search a key": lambda store: store.page(where("key:c-17"), state="dead"),
        "search an id": lambda store: store.page(where("id:orders-77"), state="dead"),
        "search a common word": lambda store: store.page(where("customer"), state="dead"),
        "search a rare phrase": lambda store: store.page(where('"order 7777 of"'), state="dead"),
        "search a line of a traceback": lambda store: store.page(where("traceback:m17.py"), state="dead"),
        "count": lambda store: store.count(state="dead"),
        "count of a source": lambda store: store.count(where("source:orders"), state="dead"),
        "groups, with their trend": lambda store: store.groups(state="dead", limit=50, trend_since=NOW - 86_400),
    }


def _step(store: LetterStore) -> object:
    first = store.page(state="dead")
    return store.page(state="dead", after=first.next)


def asked(_: Path, folder: str, size: int) -> Asked:
    """In a process of its own: make a store, fill it, ask it."""
    file = Path(folder) / "letters.db"
    store = letters_for(f"sqlite:///{file}")
    store.open()
    arrivals = [_arrival(number) for number in range(PUT)]
    began = time.perf_counter()
    for start in range(0, PUT, BATCH):
        store.put(arrivals[start : start + BATCH])
    put = PUT / (time.perf_counter() - began)
    _fill(file, size // PUT)
    began = time.perf_counter()
    store.index_text()
    indexed = size / (time.perf_counter() - began)
    took = {name: statistics.median(_times(store, question)) for name, question in _questions().items()}
    bytes_each = sum(each.stat().st_size for each in Path(folder).iterdir()) / size
    store.close()
    return Asked(took, put, indexed, bytes_each)


def _times(store: LetterStore, question: Callable[[LetterStore], object]) -> Sequence[float]:
    question(store)
    found = []
    for _ in range(ASKED):
        began = time.perf_counter()
        question(store)
        found.append((time.perf_counter() - began) * 1_000)
    return found


def _fill(file: Path, copies: int) -> None:
    """All letters that were put, some times more: under other ids, and each time somewhat earlier."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for copy in range(1, copies):
            new = {"no": f"no + {copy * PUT}", "letter_id": f"letter_id || '-{copy}'", "failed_at": f"failed_at - {copy * 0.7}"}
            new |= {"message_id": f"message_id || '-{copy}'", "error": f"replace(error, 'order ', 'order {copy}')"}
            new |= {"key": f"key || '-{copy}'"}
            for table, columns in (("unpoison_letters", LETTER), ("unpoison_letter_contents", CONTENTS)):
                values = ", ".join(new.get(name, name) for name in columns.split(", "))
                connection.execute(f"insert into {table} ({columns}) select {values} from {table} where no <= {PUT}")
        connection.execute(f"update unpoison_letter_turn set last = last * {copies}")
        for table in ("unpoison_letter_counts", "unpoison_letter_hours", "unpoison_tracebacks"):
            connection.execute(f"update {table} set letters = letters * {copies}")


def _arrival(number: int) -> WholeLetter:
    draw = random.Random(number)
    group = draw.randrange(GROUPS)
    body = {"id": number, "customer": f"C-{number % 977}", "total": number % 100 + 0.5, "lines": [{"sku": f"A-{number % 50}"}]}
    message = Message(
        f"0199-{number}",
        ("orders", "parcels", "emails")[group % 3],
        msgspec.json.encode(body | {"note": "x" * draw.randrange(400)}),
        f"c-{number % 997}",
        {"tenant": "acme"},
    )
    letter = DeadLetter(
        id=f"orders-{number}",
        message=message,
        attempts=3,
        classification="permanent",
        rule="ValueError",
        reason="ValueError cannot be cured by a retry",
        error_type=f"shop.errors.Error{group}",
        error=f"order {number} of customer C-{number % 977} cannot be shipped",
        traceback=f'Traceback (most recent call last):\n  File "/srv/shop/m{group}.py", line {group}, in ship\n' * 4,
        fingerprint=f"9-{group:012x}",
        first_failed_at=NOW - 1e6,
        last_failed_at=NOW - draw.random() * 1e6,
        consumer="web-1:4711",
        code_version=f"1.{group % 5}",
    )
    return WholeLetter(letter=letter)
