"""Statements that move messages between the tables, and deliveries made from rows.

The receipt of a message in the line is (first position of its lease, position, owner); of one in `waiting` (0, no, owner).
Statements on the path of an ordinary message do not wait for the disk: `_QUICK` switches syncing off for their transaction.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from unpoison.brokers.postgresql.schema import PGConnection
from unpoison.errors import Refusal
from unpoison.model.message import NO_HEADERS, UNTRIED, Delivery, Native, Outgoing, native_of_text
from unpoison.port.broker import Dead, Depth, Kept, Refused, Waits
from unpoison.port.reading import Unreadable, read_all, unreadable
from unpoison.port.serialization import counters_text, headers_text, read_counters, read_headers
from unpoison.port.sql import letter_values, split_by_delay

_QUICK = "quick as materialized (select set_config('synchronous_commit', 'off', true))"
_ALIVE = "alive as materialized (select 1 from unpoison_owners where no = %(owner)s for key share)"

_AT = """ctid = any (array(
    select ctid from unpoison_line
    where source = %(source)s and position between %(at)s and %(at)s order by position limit 1))"""
"""One message of the line. Written so that only the primary key fits. While a long transaction keeps dead rows, statistics
say that the line is nearly empty, and the planner would take any index that begins with the source."""

FETCH_LINE = f"""
with {_QUICK}, {_ALIVE},
state as materialized (
    select no, upto, seen from unpoison_handed where source = %(source)s order by no desc limit 1),
counted as (
    select position, id, body, key, headers, sum(octet_length(body)) over (order by position) - octet_length(body) as before
    from (
        select position, id, body, key, headers from unpoison_line
        where source = %(source)s and position > (select upto from state) order by position limit %(limit)s) as next_ones),
fresh as materialized (
    select position, id, body, key, headers from counted where before < %(bytes)s),
late as materialized (
    select found from (select pg_snapshot_xip(seen) as was_open, upto from state) as last_time
    cross join lateral (
        select ctid as found from unpoison_line
        where source = %(source)s and xid = was_open and position + 0 <= upto offset 0) as by_now
    union all
    select ctid from unpoison_line where source = %(source)s and xid >= (select pg_snapshot_xmax(seen) from state)
    and position + 0 <= (select upto from state)),
noted as (
    insert into unpoison_handed (source, no, upto, seen)
    select %(source)s, no + 1, greatest(upto, (select max(position) from fresh)), pg_current_snapshot() from state, alive, quick
    where exists (select from fresh) or exists (select from late)
    returning no),
forgotten as (
    delete from unpoison_handed where ctid = any (array(
        select found from noted cross join lateral (
            select ctid as found from unpoison_handed
            where source = %(source)s and no between noted.no - 1 and noted.no - 1 order by no limit 1) as before_it))),
leased as (
    insert into unpoison_leases (first, last, source, owner, seen)
    select min(position), max(position), %(source)s, %(owner)s, pg_current_snapshot() from fresh, noted having count(*) > 0),
overtaken as (
    delete from unpoison_line where ctid = any (array(select found from late)) and exists (select from noted)
    returning id, key, headers, body, published),
requeued as (
    insert into unpoison_waiting (source, due, id, key, headers, body, published)
    select %(source)s, statement_timestamp(), id, key, headers, body, published from overtaken)
select position, id, body, key, headers,
    exists (
        select from unpoison_waiting where source = %(source)s and not alone and owner is null and due <= statement_timestamp())
    or exists (select from late)
from fresh, noted order by position
"""
"""Hand out the next messages of the line. Rows written before the last hand-out that became visible since go to `waiting`.
They are found by their xid: `+ 0` and `offset 0` keep the planner from reading all that was ever done. A single row is looked
up `between n and n order by n limit 1`, for the reason given at `_AT`.

Run it only under the lock below, taken by an earlier statement: this one must see what the last hand-out recorded."""

LOCK_LINE = "select pg_advisory_xact_lock('unpoison_handed'::regclass::oid::integer, %(source)s)"

FETCH_WAITING = f"""
with {_QUICK}, {_ALIVE},
due_ones as (
    select no, due, octet_length(body) as size from unpoison_waiting
    where source = %(source)s and alone = %(alone)s and owner is null and due <= statement_timestamp()
    order by due limit %(limit)s for update skip locked),
found as (
    select no, sum(size) over (order by due, no) - size as before from due_ones),
taken as (
    update unpoison_waiting set owner = %(owner)s from found, alive, quick
    where unpoison_waiting.no = found.no and before < %(bytes)s
    returning unpoison_waiting.no, due, id, body, key, headers, counters)
select no, id, body, key, headers, counters from taken order by due
"""

LOOK = """
select exists (select from unpoison_owners where no = %(owner)s),
    exists (
        select from unpoison_waiting where source = %(source)s and not alone and owner is null and due <= statement_timestamp())
"""

GONE = f"""
with {_QUICK},
gone as (
    delete from unpoison_line using quick where ctid = any (array(
        select found from unnest(%(positions)s::bigint[]) as wanted
        cross join lateral (
            select ctid as found from unpoison_line
            where source = %(source)s and position between wanted and wanted order by position limit 1) as by_position))
    returning 1),
ended as (
    delete from unpoison_leases where first = any (%(ended)s))
select count(*) from gone
"""

GONE_WAITING = "delete from unpoison_waiting where no = any (%(numbers)s) and owner = %(owner)s"

GONE_ALREADY = """
delete from unpoison_settled using unnest(%(leases)s::bigint[], %(ats)s::bigint[]) as wanted (lease, at)
where owner = %(owner)s and unpoison_settled.lease = wanted.lease and unpoison_settled.at = wanted.at
"""
"""Messages that handlers settled in their own transactions: see `settle` in __init__.py."""

_WANTED = """wanted as materialized (
    select * from unnest(%(ats)s::bigint[], %(afters)s::float8[], %(alones)s::boolean[], %(counters)s::text[])
    as each (at, after, alone, counters))"""

KEEP_LINE = f"""
with {_WANTED},
taken as materialized (
    delete from unpoison_line where ctid = any (array(
        select found from wanted cross join lateral (
            select ctid as found from unpoison_line
            where source = %(source)s and position between at and at order by position limit 1) as by_position))
    returning position, id, key, headers, body, published)
insert into unpoison_waiting (source, due, alone, counters, id, key, headers, body, published)
select %(source)s, statement_timestamp() + after * interval '1 second', alone, counters, id, key, headers, body, published
from taken join wanted on position = at
"""

KEEP_WAITING = f"""
with {_WANTED}
update unpoison_waiting set owner = null, due = statement_timestamp() + wanted.after * interval '1 second', alone = wanted.alone,
    counters = wanted.counters from wanted where no = wanted.at and owner = %(owner)s
"""

_DEAD_LETTER = """
insert into unpoison_dead (source, state, replays, fingerprint, id, key, headers, body, record)
select %(source)s, 'dead', %(replays)s, %(fingerprint)s, %(id)s, %(key)s, %(headers)s, %(body)s, %(record)s from taken
returning no
"""
DEAD_LINE = f"with taken as (delete from unpoison_line where {_AT} returning 1) {_DEAD_LETTER}"
DEAD_WAITING = f"with taken as (delete from unpoison_waiting where no = %(at)s and owner = %(owner)s returning 1) {_DEAD_LETTER}"

PUBLISH_LATER = """
insert into unpoison_waiting (source, due, id, key, headers, body)
values (%s, statement_timestamp() + %s * interval '1 second', %s, %s, %s, %s)
"""
PUBLISH_ONE = "insert into unpoison_line (source, id, key, headers, body) values (%s, %s, %s, %s, %s)"
PUBLISH_MANY = "copy unpoison_line (source, id, key, headers, body) from stdin (format binary)"
NOTIFY = "select pg_notify('unpoison', %s::text)"


Row = Sequence[Any]


def of_line(source: str, owner: int, found: Sequence[Row]) -> list[Delivery]:
    lease = found[0][0] if found else 0
    together = partial(_new_ones, source, lease, owner)
    return read_all(found, together, lambda row: together([row])[0], partial(_unreadable, source, lease, owner))


def _new_ones(source: str, lease: int, owner: int, found: Sequence[Row]) -> list[Delivery]:
    """The hot loop: it calls no function for an ordinary message."""
    return [
        Delivery((lease, position, owner), source, id_, body, key, NO_HEADERS if headers is None else read_headers(headers))
        for position, id_, body, key, headers, _ in found
    ]


def of_waiting(source: str, owner: int, found: Sequence[Row]) -> list[Delivery]:
    together = partial(_waiting_ones, source, owner)
    return read_all(found, together, lambda row: together([row])[0], partial(_unreadable, source, 0, owner))


def _waiting_ones(source: str, owner: int, found: Sequence[Row]) -> list[Delivery]:
    return [
        Delivery((0, no, owner), source, id_, body, key, read_headers(headers), UNTRIED if text is None else read_counters(text))
        for no, id_, body, key, headers, text in found
    ]


def native(delivery: Delivery) -> Native:
    """Table and row of the message while its handler runs. A retry moves it."""
    lease, at, _ = delivery.receipt
    properties = {"table": "unpoison_line" if lease else "unpoison_waiting", "row": at}
    return native_of_text(delivery.key, delivery.headers, properties)


def _unreadable(source: str, lease: int, owner: int, row: Row, error: Exception) -> Unreadable:
    at, id_, body, key, headers, last = row
    native = {"id": id_, "key": key, "headers": headers} | ({} if lease else {"counters": last})
    return unreadable((lease, at, owner), source, id_, body, native, error)


def keep(run: PGConnection, together: Sequence[Kept], owner: int, source: int) -> int:
    """Keep messages of one source for another start. Returns how many of them this owner still held."""
    held, in_line = 0, [kept for kept in together if kept.delivery.receipt[0]]
    waiting = [kept for kept in together if not kept.delivery.receipt[0]]
    for change, chosen in ((KEEP_LINE, in_line), (KEEP_WAITING, waiting)):
        if chosen:
            values = {
                "ats": [kept.delivery.receipt[1] for kept in chosen],
                "afters": [float(kept.after) for kept in chosen],
                "alones": [kept.counters.alone for kept in chosen],
                "counters": [counters_text(kept.counters) for kept in chosen],
            }
            held += run.execute(change, values | {"source": source, "owner": owner}).rowcount
    return held


def move_to_dlq(run: PGConnection, dead: Dead, owner: int, source: int) -> int | None:
    """Make it a dead letter. Returns its number; None if this owner no longer holds it."""
    lease, at, _ = dead.delivery.receipt
    values = {"source": source, "at": at, "owner": owner, **letter_values(dead.letter)}
    row = run.execute((DEAD_LINE if lease else DEAD_WAITING), values).fetchone()
    return None if row is None else int(row[0])


def publish(run: PGConnection, source: int, messages: Sequence[Outgoing]) -> None:
    """A single message is inserted; many are copied in, which is several times as fast."""
    ready, delayed = split_by_delay(messages)
    for message in delayed:
        run.execute(PUBLISH_LATER, (source, message.delay, *_columns(message)))
    if len(ready) == 1:
        run.execute(PUBLISH_ONE, (source, *_columns(ready[0])))
    elif ready:
        with run.cursor().copy(PUBLISH_MANY) as copy:
            copy.set_types(["int4", "text", "text", "text", "bytea"])
            for message in ready:
                copy.write_row((source, *_columns(message)))
    run.execute(NOTIFY, (source,))


def _columns(message: Outgoing) -> tuple[str, str | None, str | None, bytes]:
    headers = None if message.headers is NO_HEADERS else headers_text(message.headers)
    return message.id, message.key, headers, message.body


def unfit(messages: Sequence[Outgoing]) -> dict[int, Refused]:
    """Messages that cannot be stored: text in PostgreSQL cannot hold the character NUL."""
    why = "{} {!r} contains the character NUL, which PostgreSQL cannot store. Send it without."
    return {
        number: Refused(Refusal.UNFIT, why.format(name, text))
        for number, message in enumerate(messages)
        for name, text in (("key", message.key), ("id", message.id))
        if text is not None and "\x00" in text
    }


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
"""One statement is one snapshot: a message that moves meanwhile is counted once."""


def depth_of(run: PGConnection, source: int) -> Depth:
    """How many messages of a source are in which state."""
    row = run.execute(_COUNT, {"source": source}).fetchone() or (0,) * 6
    line, leased, due, delayed, taken, dead = map(int, row)
    return Depth(ready=line - leased + due, delayed=delayed, leased=leased + taken, dead=dead)


_OLDEST = """
select extract(epoch from statement_timestamp() - least(
    (select published from unpoison_line where source = %(source)s and position >
        (select upto from unpoison_handed where source = %(source)s order by no desc limit 1) order by position limit 1),
    (select min(due) from unpoison_waiting where source = %(source)s and owner is null and due <= statement_timestamp())
))::float8
"""


def oldest_of(run: PGConnection, source: int) -> float | None:
    """For how long the message that waits longest has been ready. One that is committed late is not looked for."""
    (age,) = run.execute(_OLDEST, {"source": source}).fetchone() or (None,)
    return None if age is None else max(0.0, age)


_NEXT_DUE = """
select extract(epoch from min(due))::float8 from unpoison_waiting
where source = %(source)s and owner is null and due > statement_timestamp()
"""
_HOLDERS = """
select host, pid from unpoison_owners where no <> %(me)s and (
    no in (select owner from unpoison_leases where source = %(source)s)
    or no in (select owner from unpoison_waiting where source = %(source)s and owner is not null)) order by no
"""


def waits_of(run: PGConnection, source: int, but_owner: int) -> Waits:
    """When the next delayed message is due, and which other owners hold messages of the source."""
    values = {"source": source, "me": but_owner}
    (due,) = run.execute(_NEXT_DUE, values).fetchone() or (None,)
    return Waits(due, tuple(f"{host}:{pid}" for host, pid in run.execute(_HOLDERS, values).fetchall()))
