"""PostgreSQL as a broker. `settle` ends a message in the handler's own transaction, so that its effects happen exactly once.

What the handler writes and the removal of the message are committed together, or not at all. If the worker dies before the
commit, nothing has happened; if it dies after it, the message is done and does not come back.
"""

from typing import Any, Protocol

from unpoison.errors import CapabilityError, OwnershipLost
from unpoison.model.message import Delivery

__all__ = ["settle"]

_SETTLE_LINE = """
with taken as (
    delete from unpoison_line where ctid = any (array(
        select ctid from unpoison_line where source = (select no from unpoison_sources where name = %(source)s)
        and position between %(at)s and %(at)s order by position limit 1))
    returning 1)
insert into unpoison_settled (lease, at, owner) select %(lease)s, %(at)s, %(owner)s from taken
"""
_SETTLE_WAITING = """
with taken as (delete from unpoison_waiting where no = %(at)s and owner = %(owner)s returning 1)
insert into unpoison_settled (lease, at, owner) select %(lease)s, %(at)s, %(owner)s from taken
"""


class Connection(Protocol):
    """A connection of psycopg or psycopg2, or the one below those of SQLAlchemy and Django."""

    def cursor(self) -> Any:
        """A DB-API cursor."""


def settle(connection: Connection, delivery: Delivery) -> None:
    """Settle this message with the transaction that is open on this connection: done if it commits, untouched if it does not.

    Call it once, in the handler, on the database that the app consumes from. It raises OwnershipLost if another consumer has
    taken the message over: do not catch it, so that the transaction is rolled back. If the handler fails after the commit, the
    message is done all the same.
    """
    receipt = delivery.receipt
    if not isinstance(receipt, list | tuple) or len(receipt) != 3:
        raise CapabilityError(
            f"Message {delivery.id!r} of {delivery.source!r} did not come from PostgreSQL: no transaction there can end it. "
            f"Pass the Delivery that the handler got, in an app whose URL is postgresql://…"
        )
    lease, at, owner = receipt
    cursor = connection.cursor()
    try:
        values = {"source": delivery.source, "lease": lease, "at": at, "owner": owner}
        cursor.execute(_SETTLE_LINE if lease else _SETTLE_WAITING, values)
        if cursor.rowcount != 1:
            raise OwnershipLost(
                f"Message {delivery.id!r} of {delivery.source!r} no longer belongs to this consumer, or was settled before. "
                f"Nothing was settled; roll the transaction back."
            )
    finally:
        cursor.close()
