"""How many messages of a source are where in a PostgreSQL database?"""

from unpoison.brokers.postgresql.schema import Connection
from unpoison.port.broker import Depth, Waits

_COUNT = """
select
    (select count(*) from unpoison_line where source = %(source)s),
    (select count(*) from unpoison_leases, unpoison_line
        where unpoison_leases.source = %(source)s and unpoison_line.source = %(source)s and position between first and last
        and pg_visible_in_snapshot(xid, seen)),
    (select count(*) from unpoison_waiting where source = %(source)s and owner is null and due <= statement_timestamp()),
    (select count(*) from unpoison_waiting where source = %(source)s and owner is null and due > statement_timestamp()),
    (select count(*) from unpoison_waiting where source = %(source)s and owner is not null),
    (select count(*) from unpoison_dead where source = %(source)s and state = 'dead')
"""
"""One statement sees one moment: a message on its way from here to there is counted once."""


def depth_of(run: Connection, source: int) -> Depth:
    row = run.execute(_COUNT, {"source": source}).fetchone() or (0,) * 6
    line, leased, due, delayed, taken, dead = map(int, row)
    return Depth(ready=line - leased + due, delayed=delayed, leased=leased + taken, dead=dead)


_NEXT_DUE = """
select extract(epoch from min(due))::float8 from unpoison_waiting
where source = %(source)s and owner is null and due > statement_timestamp()
"""
_HOLDERS = """
select host, pid from unpoison_owners where no <> %(me)s and (
    no in (select owner from unpoison_leases where source = %(source)s)
    or no in (select owner from unpoison_waiting where source = %(source)s and owner is not null)) order by no
"""


def waits_of(run: Connection, source: int, but_owner: int) -> Waits:
    """When the next message is due, and who holds some, besides this owner."""
    values = {"source": source, "me": but_owner}
    (due,) = run.execute(_NEXT_DUE, values).fetchone() or (None,)
    return Waits(due, tuple(f"{host}:{pid}" for host, pid in run.execute(_HOLDERS, values).fetchall()))
