"""How are messages and letters written to and read from rows?"""

import sqlite3
from collections.abc import Sequence

from unpoison.brokers.sqlite.leases import runs
from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.message import NO_HEADERS, UNTRIED, Delivery, Outgoing
from unpoison.ports import Dead, Kept, Settlement
from unpoison.stored import counters_text, headers_text, read_counters, read_headers, record_text

FETCH_BYTES = 64 * 1024 * 1024
"""A fetch ends early once it has read this much: a limit by count alone lets large bodies fill the memory."""


class Room:
    """How many bytes one fetch may still read."""

    def __init__(self) -> None:
        self._left = FETCH_BYTES

    def read(self, source: str, cursor: sqlite3.Cursor) -> list[Delivery]:
        """Deliveries of these rows, as far as there is room. The last one may be larger than what is left.

        One loop that calls nothing for an ordinary message: this is paid for each of them.
        """
        found, left = [], self._left
        if left > 0:
            for receipt, id_, body, key, headers, counters in cursor:
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


def bury(run: sqlite3.Connection, dead: Dead, owner: int, source: int) -> int:
    """Move it to the dead letters. Returns 0 if this owner does not hold it any more."""
    letter, message = dead.letter, dead.letter.message
    run.execute(
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
    return remove(run, [dead.delivery.receipt], owner)


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
