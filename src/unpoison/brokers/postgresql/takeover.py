"""What happens to the messages of a consumer that vanished?

They come back as *returned*: whether they had been started is not known.
"""

from unpoison.brokers.postgresql.schema import Connection
from unpoison.message import UNTRIED
from unpoison.reading import read_one
from unpoison.stored import counters_text, read_counters

_MOVE = """
with lease as (delete from unpoison_leases where owner = %(owner)s returning first, last, source, seen),
left_over as (
    delete from unpoison_line using lease where unpoison_line.source = lease.source and position between first and last
    and pg_visible_in_snapshot(xid, seen)
    returning unpoison_line.source, id, key, headers, body, published)
insert into unpoison_waiting (source, due, counters, id, key, headers, body, published)
select source, statement_timestamp(), %(counters)s, id, key, headers, body, published from left_over
"""


def take_over(run: Connection, owner: int) -> bool:
    """Give everything that this owner held back to its sources, in a transaction of the caller's. False if it is done already.

    Its entry goes first: a fetch of its own that is under way either has ended by then, and is seen here, or finds no entry.
    """
    if not run.execute("delete from unpoison_owners where no = %s", (owner,)).rowcount:
        return False
    run.execute("delete from unpoison_settled where owner = %s", (owner,))
    run.execute(_MOVE, {"owner": owner, "counters": counters_text(UNTRIED.returned())})
    held = "select no, counters from unpoison_waiting where owner = %s for update"
    for no, text in run.execute(held, (owner,)).fetchall():
        back = "update unpoison_waiting set owner = null, due = statement_timestamp(), counters = %s where no = %s"
        # What cannot be read stays as it is; the fetch that finds it makes it a dead letter.
        counters = read_one(text, lambda each: counters_text(read_counters(each).returned()), lambda each, _: each)
        run.execute(back, (counters, no))
    return True
