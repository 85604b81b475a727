"""What became of messages that could not be published?

They were written in one transaction. Until it is committed none of them is stored, for certain. A commit that the server refuses
has not happened either; one that it never answered may have.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import errors

from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import Published, Refused
from unpoison.port.broker_url import masked, without_secrets

_ENDED = ("57P", "08")
"""How the codes begin of a server that ends, or of a connection that is lost: what was being committed may be committed."""


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn PostgreSQL's words into what they mean for a queue, and what to do."""
    try:
        yield
    except psycopg.Error as error:
        text = without_secrets(" ".join(str(error).split()), url)
        raise BrokerUnavailable(f"PostgreSQL at {masked(url)!r}: {text}. {_meaning(error)}") from error


def _meaning(error: psycopg.Error) -> str:
    match error:
        case errors.InsufficientPrivilege() | errors.ReadOnlySqlTransaction():
            return "This user may not write here: nothing is lost. Grant it the rights that docs/postgresql.md lists."
        case errors.UndefinedTable() | errors.UndefinedColumn():
            return "The tables of unpoison are not there. Run: unpoison migrate URL"
        case errors.DiskFull():
            return "The disk of the server is full: nothing more can be stored, nothing is lost. Free some space."
        case errors.LockNotAvailable() | errors.QueryCanceled():
            return "Another session holds what this needs, or a time limit was reached. Nothing is lost; it is tried again."
        case psycopg.OperationalError():
            return "Nothing that was not confirmed has been taken for done. Check that the server runs and can be reached."
        case _:
            return "Nothing that was not confirmed has been taken for done."


def failed(messages: Sequence[Outgoing], error: BrokerUnavailable, *, committing: bool) -> Published:
    cause = error.__cause__
    code = getattr(cause, "sqlstate", None)
    if committing and (code is None or code.startswith(_ENDED)):
        return Published(unknown=dict.fromkeys(range(len(messages)), str(error)))
    return Published(dict.fromkeys(range(len(messages)), Refused(_refusal(cause), str(error))))


def _refusal(cause: BaseException | None) -> Refusal:
    match cause:
        case errors.InsufficientPrivilege() | errors.ReadOnlySqlTransaction():
            return Refusal.NOT_PERMITTED
        case errors.DiskFull() | errors.OutOfMemory():
            return Refusal.NO_ROOM
        case errors.ProgramLimitExceeded():
            return Refusal.TOO_LARGE
        case errors.IntegrityError() | errors.DataError():
            return Refusal.UNFIT
        case errors.OperationalError() | errors.InterfaceError():
            return Refusal.NOT_SENT
        case _:
            return Refusal.OTHER
