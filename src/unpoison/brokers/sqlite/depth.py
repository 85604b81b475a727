"""How many messages of a source are where in a SQLite file?"""

import sqlite3

from unpoison.brokers.sqlite.schema import POSITIONS
from unpoison.ports import Depth


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
