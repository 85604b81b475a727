"""How are messages and letters written to and read from rows?"""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from unpoison.brokers.sqlite.owner import runs
from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.model.message import NO_HEADERS, UNTRIED, Delivery, Native, Outgoing, native_of_text
from unpoison.port.broker import Dead, Depth, Kept, Settlement, Waits
from unpoison.port.reading import Unreadable, as_bytes, as_text, read_one, unreadable
from unpoison.port.serialization import counters_text, headers_text, read_counters, read_headers, record_text

FETCH_BYTES = 64 * 1024 * 1024
"""A fetch ends early once it has read this much: a limit by count alone lets large bodies fill the memory."""


Row = Sequence[Any]
"""Receipt, id, body, key, headers and counters of a message. SQLite keeps any type in any column."""


class Room:
    """How many bytes one fetch may still read."""

    def __init__(self) -> None:
        self._left = FETCH_BYTES

    def read(self, source: str, run: sqlite3.Connection, query: str, values: Sequence[object]) -> list[Delivery]:
        """Deliveries of the rows that the query finds, as far as there is room. The last one may be larger than what is left."""

        def together(query: str) -> list[Delivery]:
            return self._together(source, run.execute(query, values))

        def one_by_one(query: str, error: Exception) -> list[Delivery]:
            if isinstance(error, sqlite3.Error) and "decode" not in str(error):
                raise error
            rows = self._rows_as_bytes(run, query, values)
            return [read_one(row, partial(delivery_of, source), partial(_unreadable, source)) for row in rows]

        return read_one(query, together, one_by_one)

    def _together(self, source: str, cursor: sqlite3.Cursor) -> list[Delivery]:
        """One loop that calls nothing for an ordinary message: this is paid for each of them."""
        found, left = [], self._left
        if left > 0:
            for receipt, id_, body, key, headers, counters in cursor:
                if type(body) is not bytes or type(id_) is not str or (key is not None and type(key) is not str):
                    raise TypeError("a column holds a value of another type than unpoison writes there")
                found.append(
                    Delivery(
                        receipt,
                        source,
                        id_,
                        body,
                        key,
                        NO_HEADERS if headers is None else read_headers(headers),
                        UNTRIED if counters is None else read_counters(counters),
                    )
                )
                left -= len(body)
                if left <= 0:
                    break
        cursor.close()
        self._left = left
        return found

    def _rows_as_bytes(self, run: sqlite3.Connection, query: str, values: Sequence[object]) -> list[Row]:
        """The same rows, with text as bytes: a column may hold text that is not UTF-8, which the client refuses to decode."""
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
    """One row whose texts are bytes. A person, or another program, may have written the body as text."""
    receipt, id_, body, key, headers, counters = row
    if not isinstance(body, bytes):
        raise TypeError(f"the body is of the type {type(body).__name__}")
    return Delivery(
        receipt,
        source,
        id_.decode(),
        body,
        None if key is None else key.decode(),
        read_headers(headers),
        read_counters(counters),
    )


def native(delivery: Delivery) -> Native:
    """Where the row is while the handler runs. It moves when the message is retried."""
    waits = delivery.receipt < 0
    properties = {"table": "unpoison_waiting" if waits else "unpoison_line", "row": abs(delivery.receipt)}
    return native_of_text(delivery.key, delivery.headers, properties)


def _unreadable(source: str, row: Row, error: Exception) -> Unreadable:
    receipt, id_, body, key, headers, counters = row
    native = {"id": id_, "key": key, "headers": headers, "counters": counters}
    return unreadable(receipt, source, as_text(id_), body, native, error)


def still_held(run: sqlite3.Connection, settlement: Settlement, owner: int) -> Settlement:
    """What of a settlement speaks of messages that this owner still holds."""
    return Settlement(
        [delivery for delivery in settlement.gone if _is_held(run, delivery.receipt, owner)],
        [kept for kept in settlement.kept if _is_held(run, kept.delivery.receipt, owner)],
        [dead for dead in settlement.dead if _is_held(run, dead.delivery.receipt, owner)],
    )


def _is_held(run: sqlite3.Connection, receipt: int, owner: int) -> bool:
    """Whether what was handed to this owner under this receipt is still its own. A takeover moves what the line held."""
    if receipt > 0:
        return run.execute("select 1 from unpoison_line where position = ?", (receipt,)).fetchone() is not None
    return run.execute("select 1 from unpoison_waiting where no = ? and owner = ?", (-receipt, owner)).fetchone() is not None


def remove(run: sqlite3.Connection, receipts: Sequence[int], owner: int) -> int:
    """Delete what these (sorted) receipts name: below zero a row of `waiting`, else a position of the line. Returns how many."""
    removed = 0
    for low, high in runs(receipts):
        if low < 0:
            waiting = "delete from unpoison_waiting where no between ? and ? and owner = ?"
            removed += run.execute(waiting, (-min(high, -1), -low, owner)).rowcount
        if high > 0:
            removed += run.execute("delete from unpoison_line where position between ? and ?", (max(low, 1), high)).rowcount
    return removed


def keep(run: sqlite3.Connection, kept: Kept, owner: int, now: float) -> int:
    """Have it wait for another start. Returns 0 if this owner does not hold it any more."""
    receipt, counters = kept.delivery.receipt, kept.counters
    what = (now + kept.after, counters.alone, counters_text(counters))
    if receipt < 0:
        change = "update unpoison_waiting set owner = null, due = ?, alone = ?, counters = ? where no = ? and owner = ?"
        return run.execute(change, (*what, -receipt, owner)).rowcount
    run.execute(
        "insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published) "
        "select ?, ?, ?, ?, id, key, headers, body, published from unpoison_line where position = ?",
        (receipt // POSITIONS, *what, receipt),
    )
    return remove(run, [receipt], owner)


def bury(run: sqlite3.Connection, dead: Dead, owner: int, source: int) -> int | None:
    """Move it to the dead letters. Returns its number there; None if this owner does not hold it any more."""
    letter, message = dead.letter, dead.letter.message
    written = run.execute(
        "insert into unpoison_dead (source, state, replays, fingerprint, id, key, headers, body, record) "
        "values (?, 'dead', ?, ?, ?, ?, ?, ?, ?)",
        (
            source,
            letter.replays,
            letter.fingerprint,
            message.id,
            message.key,
            headers_text(message.headers),
            message.body,
            record_text(letter),
        ),
    )
    return written.lastrowid if remove(run, [dead.delivery.receipt], owner) else None


def publish(run: sqlite3.Connection, source: int, messages: Sequence[Outgoing], now: float) -> None:
    later = [message for message in messages if message.delay > 0]
    ready = messages if not later else [message for message in messages if message.delay <= 0]
    if later:
        run.executemany(
            "insert into unpoison_waiting (source, due, id, key, headers, body, published) values (?, ?, ?, ?, ?, ?, ?)",
            ((source, now + m.delay, m.id, m.key, headers_text(m.headers), m.body, now) for m in later),
        )
    if ready:
        last = run.execute("select last from unpoison_sources where no = ?", (source,)).fetchone()[0]
        position = source * POSITIONS + last + 1
        run.execute("update unpoison_sources set last = last + ? where no = ?", (len(ready), source))
        run.executemany(
            "insert into unpoison_line values (?, ?, ?, ?, ?, ?)",
            (
                (position + n, m.id, m.key, None if m.headers is NO_HEADERS else headers_text(m.headers), m.body, now)
                for n, m in enumerate(ready)
            ),
        )


# How many messages of a source are where in a SQLite file?


def depth_of(run: sqlite3.Connection, source: int, now: float) -> Depth:
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


def waits_of(run: sqlite3.Connection, source: int, now: float, but_owner: int) -> Waits:
    """When the next message is due, and who holds some, besides this owner."""
    next_due = "select min(due) from unpoison_waiting where source = ? and owner is null and due > ?"
    holders = (
        "select host, pid from unpoison_owners where no <> :me and (no in (select owner from unpoison_leases where first / :size "
        "= :source) or no in (select owner from unpoison_waiting where source = :source and owner is not null)) order by no"
    )
    values = {"me": but_owner, "size": POSITIONS, "source": source}
    (due,) = run.execute(next_due, (source, now)).fetchone()
    return Waits(due, tuple(f"{host}:{pid}" for host, pid in run.execute(holders, values)))
