"""What happens to the messages of a consumer that vanished?

They come back as *returned*: whether they had been started is not known.
"""

from collections import Counter

from unpoison.brokers.postgresql.schema import Connection
from unpoison.model.message import UNTRIED
from unpoison.port.reading import read_one
from unpoison.port.serialization import counters_text, read_counters
from unpoison.port.takeovers import Takeover

_MOVE = """
with lease as (delete from unpoison_leases where owner = %(owner)s returning first, last, source, seen),
left_over as (
    delete from unpoison_line using lease where unpoison_line.source = lease.source and position between first and last
    and pg_visible_in_snapshot(xid, seen)
    returning unpoison_line.source, id, key, headers, body, published)
insert into unpoison_waiting (source, due, counters, id, key, headers, body, published)
select source, statement_timestamp(), %(counters)s, id, key, headers, body, published from left_over
returning source
"""


def take_over(run: Connection, owner: int) -> Takeover | None:
    """Give everything that this owner held back to its sources, in a transaction of the caller's. None if it is done already.

    Its entry goes first: a fetch of its own that is under way either has ended by then, and is seen here, or finds no entry.
    """
    leave = "delete from unpoison_owners where no = %s returning host, pid, extract(epoch from since)::float8"
    gone = run.execute(leave, (owner,)).fetchone()
    if gone is None:
        return None
    run.execute("delete from unpoison_settled where owner = %s", (owner,))
    moved = run.execute(_MOVE, {"owner": owner, "counters": counters_text(UNTRIED.returned())})
    held = Counter(source for (source,) in moved.fetchall())
    waiting = "select no, source, counters from unpoison_waiting where owner = %s for update"
    for no, source, text in run.execute(waiting, (owner,)).fetchall():
        held[source] += 1
        back = "update unpoison_waiting set owner = null, due = statement_timestamp(), counters = %s where no = %s"
        # What cannot be read stays as it is; the fetch that finds it makes it a dead letter.
        counters = read_one(text, lambda each: counters_text(read_counters(each).returned()), lambda each, _: each)
        run.execute(back, (counters, no))
    names: dict[int, str] = dict(
        run.execute("select no, name from unpoison_sources where no = any (%s)", (list(held),)).fetchall()
    )
    host, pid, since = gone
    return Takeover(f"{host}:{pid}", since, {names[source]: count for source, count in held.items()})
