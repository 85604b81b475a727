"""What happens to the messages of a consumer that vanished?

They come back as *returned*: whether they had been started is not known.
"""

import sqlite3
from collections import Counter

from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.model.message import UNTRIED
from unpoison.port.reading import read_one
from unpoison.port.serialization import counters_text, read_counters
from unpoison.port.takeovers import Takeover


def take_over(run: sqlite3.Connection, owner: int, now: float) -> Takeover:
    """Give everything that this owner held back to its sources. Runs inside a transaction, with its lock known to be free."""
    held: Counter[int] = Counter()
    for first, last in run.execute("select first, last from unpoison_leases where owner = ?", (owner,)).fetchall():
        held[first // POSITIONS] += run.execute(
            "insert into unpoison_waiting (source, due, counters, id, key, headers, body, published) "
            "select ?, ?, ?, id, key, headers, body, published from unpoison_line where position between ? and ?",
            (first // POSITIONS, now, counters_text(UNTRIED.returned()), first, last),
        ).rowcount
        run.execute("delete from unpoison_line where position between ? and ?", (first, last))
    run.execute("delete from unpoison_leases where owner = ?", (owner,))
    for no, source, text in run.execute("select no, source, counters from unpoison_waiting where owner = ?", (owner,)).fetchall():
        held[source] += 1
        # What cannot be read stays as it is; the fetch that finds it makes it a dead letter.
        counters = read_one(text, lambda each: counters_text(read_counters(each).returned()), lambda each, _: each)
        run.execute("update unpoison_waiting set owner = null, due = ?, counters = ? where no = ?", (now, counters, no))
    host, pid, since = run.execute("select host, pid, since from unpoison_owners where no = ?", (owner,)).fetchone()
    run.execute("delete from unpoison_owners where no = ?", (owner,))
    name = "select name from unpoison_sources where no = ?"
    return Takeover(f"{host}:{pid}", since, {run.execute(name, (no,)).fetchone()[0]: count for no, count in held.items()})
