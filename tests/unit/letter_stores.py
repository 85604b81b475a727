"""How do the tests of the store's letters make stores whose clocks they hold, and what do they put into them?"""

import random
from collections import Counter

import msgspec

from tests.unit.filtering import NOW, letter
from tests.unit.stores import Clock
from unpoison.model.dead_letter import WholeLetter
from unpoison.store import schema
from unpoison.store.letters.sql_letters import SQLLetterStore, letters_for
from unpoison.store.letters.values import StoredLetter
from unpoison.store.sqlite import SQLiteDatabase

TABLES = [name for name in schema.TABLES if any(part in name for part in ("letter", "traceback", "audit"))]


_RESET = {
    "unpoison_letter_turn": "update unpoison_letter_turn set last = 0",
    "unpoison_letter_search_upto": "update unpoison_letter_search_upto set upto = 0",
}


def opened(url: str, clock: Clock | None = None, stopwatch=None, *, create: bool = True) -> SQLLetterStore:
    """`clock` is the time of the store, `stopwatch` tells how long a transaction takes."""
    store = letters_for(url)
    assert isinstance(store, SQLLetterStore)
    clock = clock or Clock(NOW)
    store._database.now = lambda run: clock()  # of PostgreSQL it is the server's otherwise, which no test can set
    if stopwatch is not None:
        store._turns.clock = store._index._clock = stopwatch
    store.open(create=create)
    return store


def emptied(store: SQLLetterStore) -> None:
    is_sqlite = isinstance(store._database, SQLiteDatabase)
    with store._database.writing(durable=False) as run:
        for table in TABLES if not is_sqlite else [table for table in TABLES if table != "unpoison_letter_search"]:
            run(_RESET.get(table, f"delete from {table}"), ())
        if is_sqlite:
            run("drop table if exists unpoison_letter_search", ())


def arrivals(letters, **facts) -> list[WholeLetter]:
    """Each with an id of its own."""
    return [
        WholeLetter(letter=msgspec.structs.replace(each, id=f"{each.id}-{number}"), **facts)
        for number, each in enumerate(letters, 1)
    ]


def many(count: int, seed: int = 1) -> list[WholeLetter]:
    """Letters of a few sources and groups, in an order of times that is not that of their ids."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        kind = draw.randrange(5)
        found.append(
            letter(
                id=f"orders-{number}",
                source=draw.choice(["orders", "parcels"]),
                error_type=f"Error{kind}",
                error="no answer",
                traceback=f'File "/srv/shop.py", line {kind}, in ship\n' if kind else "",
                last_failed_at=NOW - draw.randrange(90_000),
                first_failed_at=NOW - 90_000.0,
                code_version=draw.choice([None, "1.0", "1.1"]),
                body=b'{"id":%d,"kind":%d}' % (number, kind),
            )
        )
    return [WholeLetter(letter=each) for each in found]


def all_of(store: SQLLetterStore) -> list[StoredLetter]:
    return store._letters.find("true", ())


def counted_again(store: SQLLetterStore) -> dict[str, Counter]:
    """What the store counts, counted by looking at every letter."""
    stored = all_of(store)
    kinds = Counter((e.letter.fingerprint, e.letter.source, e.letter.classification, e.letter.state) for e in stored)
    return {"kinds": kinds, "tracebacks": Counter(e.letter.traceback for e in stored if e.letter.traceback)}


def counts_in(store: SQLLetterStore) -> dict[str, Counter]:
    with store._database.reading() as run:
        kinds = run("select fingerprint, source, classification, state, letters from unpoison_letter_counts", ()).fetchall()
        tracebacks = run("select traceback, letters from unpoison_tracebacks", ()).fetchall()
    return {
        "kinds": Counter({tuple(kind): count for *kind, count in kinds if count}),
        "tracebacks": Counter({text: count for text, count in tracebacks if count}),
    }
