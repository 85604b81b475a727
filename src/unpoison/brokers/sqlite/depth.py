"""How many messages of a source are where in a SQLite file?"""

import sqlite3

from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.port.broker import Depth, Waits


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
