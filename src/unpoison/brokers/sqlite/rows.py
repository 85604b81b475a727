"""Statements that move messages between the tables, and deliveries made from rows."""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unpoison.brokers.sqlite.owner import ranges
from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.model.message import NO_HEADERS, UNTRIED, Delivery, Native, Outgoing, native_of_text
from unpoison.port.broker import Dead, Depth, Kept, Settlement, Waits
from unpoison.port.reading import FETCH_BYTES, Unreadable, as_bytes, as_text, read_one, unreadable
from unpoison.port.serialization import counters_text, headers_text, read_counters, read_headers
from unpoison.port.sql import letter_values, split_by_delay

Row = Sequence[Any]
"""Receipt, id, body, key, headers and counters of a message. SQLite stores any type in any column."""


class ByteBudget:
    """How many bytes one fetch may still read."""

    def __init__(self) -> None:
        self._left = FETCH_BYTES

    def read(self, source: str, run: sqlite3.Connection, query: str, values: Sequence[object]) -> list[Delivery]:
        """Deliveries of the rows that the query finds, until the budget is spent. The last one may exceed it."""

        def together(query: str) -> list[Delivery]:
            return self._together(source, run.execute(query, values))

        def one_by_one(query: str, error: Exception) -> list[Delivery]:
            if isinstance(error, sqlite3.Error) and "decode" not in str(error):
                raise error
            rows = self._rows_as_bytes(run, query, values)
            return [read_one(row, partial(delivery_of, source), partial(_unreadable, source)) for row in rows]

        return read_one(query, together, one_by_one)

    def _together(self, source: str, cursor: sqlite3.Cursor) -> list[Delivery]:
        """The hot loop: it calls no function for an ordinary message."""
        found, left = [], self._left
        if left > 0:
            for receipt, id_, body, key, headers, counters in cursor:
                if type(body) is not bytes or type(id_) is not str or (key is not None and type(key) is not str):
                    raise TypeError("a column holds a value of another type than unpoison writes there")
                sent = NO_HEADERS if headers is None else read_headers(headers)
                known = UNTRIED if counters is None else read_counters(counters)
                found.append(Delivery(receipt, source, id_, body, key, sent, known))
                left -= len(body)
                if left <= 0:
                    break
        cursor.close()
        self._left = left
        return found

    def _rows_as_bytes(self, run: sqlite3.Connection, query: str, values: Sequence[object]) -> list[Row]:
        """The same rows, with text as bytes: sqlite3 refuses to decode text that is not UTF-8."""
        found: list[Row] = []
        before, run.text_factory = run.text_factory, bytes
        try:
            for row in run.execute(query, values):
                if self._left <= 0:
                    break
                found.append(row)
                self._left -= len(as_bytes(row[2]))
        finally:
            run.text_factory = before
        return found


def delivery_of(source: str, row: Row) -> Delivery:
    """The delivery of a row whose texts are bytes. Another program may have written the body as text."""
    receipt, id_, body, key, headers, counters = row
    if not isinstance(body, bytes):
        raise TypeError(f"the body is of the type {type(body).__name__}")
    key = None if key is None else key.decode()
    return Delivery(receipt, source, id_.decode(), body, key, read_headers(headers), read_counters(counters))


def native(delivery: Delivery) -> Native:
    """Table and row of the message while its handler runs. A retry moves it."""
    waits = delivery.receipt < 0
    properties = {"table": "unpoison_waiting" if waits else "unpoison_line", "row": abs(delivery.receipt)}
    return native_of_text(delivery.key, delivery.headers, properties)


def _unreadable(source: str, row: Row, error: Exception) -> Unreadable:
    receipt, id_, body, key, headers, counters = row
    native = {"id": id_, "key": key, "headers": headers, "counters": counters}
    return unreadable(receipt, source, as_text(id_), body, native, error)


def still_held(run: sqlite3.Connection, settlement: Settlement, owner: int) -> Settlement:
    """The part of a settlement whose messages this owner still holds."""
    return Settlement(
        [delivery for delivery in settlement.gone if _is_held(run, delivery.receipt, owner)],
        [kept for kept in settlement.kept if _is_held(run, kept.delivery.receipt, owner)],
        [dead for dead in settlement.dead if _is_held(run, dead.delivery.receipt, owner)],
    )


def _is_held(run: sqlite3.Connection, receipt: int, owner: int) -> bool:
    """Whether this owner still holds the message. A takeover moves messages out of the line."""
    if receipt > 0:
        return run.execute("select 1 from unpoison_line where position = ?", (receipt,)).fetchone() is not None
    return run.execute("select 1 from unpoison_waiting where no = ? and owner = ?", (-receipt, owner)).fetchone() is not None


def remove(run: sqlite3.Connection, receipts: Sequence[int], owner: int) -> int:
    """Delete the messages with these (sorted) receipts: below zero a row of `waiting`, else a position of the line.

    Returns how many there were.
    """
    removed = 0
    for low, high in ranges(receipts):
        if low < 0:
            waiting = "delete from unpoison_waiting where no between ? and ? and owner = ?"
            removed += run.execute(waiting, (-min(high, -1), -low, owner)).rowcount
        if high > 0:
            removed += run.execute("delete from unpoison_line where position between ? and ?", (max(low, 1), high)).rowcount
    return removed


def keep(run: sqlite3.Connection, kept: Kept, owner: int, now: float) -> int:
    """Keep it for another start. Returns 0 if this owner no longer holds it."""
    receipt, counters = kept.delivery.receipt, kept.counters
    state = (now + kept.after, counters.alone, counters_text(counters))
    if receipt < 0:
        change = "update unpoison_waiting set owner = null, due = ?, alone = ?, counters = ? where no = ? and owner = ?"
        return run.execute(change, (*state, -receipt, owner)).rowcount
    run.execute(
        "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
        "select ?, ?, ?, ?, id, key, headers, body, published from unpoison_line where position = ?",
        (receipt // POSITIONS, *state, receipt),
    )
    return remove(run, [receipt], owner)


def move_to_dlq(run: sqlite3.Connection, dead: Dead, owner: int, source: int) -> int | None:
    """Make it a dead letter. Returns its number; None if this owner no longer holds it."""
    written = run.execute(
        "insert into unpoison_dead (source, state, replays, fingerprint, id, key, headers, body, record) "
        "values (:source, 'dead', :replays, :fingerprint, :id, :key, :headers, :body, :record)",
        {"source": source, **letter_values(dead.letter)},
    )
    return written.lastrowid if remove(run, [dead.delivery.receipt], owner) else None


def publish(run: sqlite3.Connection, source: int, messages: Sequence[Outgoing], clock: Callable[[], float]) -> None:
    (ready, delayed), now = split_by_delay(messages), clock()
    if delayed:
        run.executemany(
            "insert into unpoison_waiting (source, due, id, key, headers, body, published) values (?, ?, ?, ?, ?, ?, ?)",
            ((source, now + m.delay, m.id, m.key, headers_text(m.headers), m.body, now) for m in delayed),
        )
    if ready:
        last = run.execute("select last from unpoison_sources where no = ?", (source,)).fetchone()[0]
        position = source * POSITIONS + last + 1
        run.execute("update unpoison_sources set last = last + ? where no = ?", (len(ready), source))
        values = (
            (position + n, m.id, m.key, None if m.headers is NO_HEADERS else headers_text(m.headers), m.body, now)
            for n, m in enumerate(ready)
        )
        run.executemany("insert into unpoison_line values (?, ?, ?, ?, ?, ?)", values)


def depth_of(run: sqlite3.Connection, source: int, now: float) -> Depth:
    """How many messages of a source are in which state."""

    def count(query: str, *values: object) -> int:
        return int(run.execute(query, values).fetchone()[0])

    waiting = "select count(*) from unpoison_waiting where source = ? and owner"
    held = "select count(*) from unpoison_leases join unpoison_line on position between first and last where first / ? = ?"
    return Depth(
        ready=count("select last - handed from unpoison_sources where no = ?", source)
        + count(f"{waiting} is null and due <= ?", source, now),
        delayed=count(f"{waiting} is null and due > ?", source, now),
        leased=count(held, POSITIONS, source) + count(f"{waiting} is not null", source),
        dead=count("select count(*) from unpoison_dead where source = ? and state = 'dead'", source),
    )


def oldest_of(run: sqlite3.Connection, source: int, now: float) -> float | None:
    """For how long the message that waits longest has been ready. A look at the head of the line, and one at what is due."""
    head = (
        "select published from unpoison_line where position > :source * :size + (select handed from unpoison_sources "
        "where no = :source) and position < (:source + 1) * :size order by position limit 1"
    )
    due = "select min(due) from unpoison_waiting where source = :source and owner is null and due <= :now"
    values = {"source": source, "size": POSITIONS, "now": now}
    since = [row[0] for query in (head, due) for row in run.execute(query, values) if row[0] is not None]
    return max(0.0, now - min(since)) if since else None


def waits_of(run: sqlite3.Connection, source: int, now: float, but_owner: int) -> Waits:
    """When the next delayed message is due, and which other owners hold messages of the source."""
    next_due = "select min(due) from unpoison_waiting where source = ? and owner is null and due > ?"
    holders = (
        "select host, pid from unpoison_owners where no <> :me and (no in (select owner from unpoison_leases where first / :size "
        "= :source) or no in (select owner from unpoison_waiting where source = :source and owner is not null)) order by no"
    )
    values = {"me": but_owner, "size": POSITIONS, "source": source}
    (due,) = run.execute(next_due, (source, now)).fetchone()
    return Waits(due, tuple(f"{host}:{pid}" for host, pid in run.execute(holders, values)))
