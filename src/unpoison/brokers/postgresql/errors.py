"""What the errors of PostgreSQL mean for a queue, and for messages that were being published."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import errors

from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import UNCONFIRMED, Published, Refused
from unpoison.port.broker_url import masked, without_secrets

_ENDED = ("57P", "08")
"""Prefixes of the codes of a server that shuts down and of a lost connection: the commit may have happened."""


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Raise errors of the client as BrokerUnavailable, with what they mean and what to do."""
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
            return "The tables of unpoison do not exist. Run: unpoison migrate URL"
        case errors.DiskFull():
            return "The disk of the server is full: nothing more can be stored, nothing is lost. Free some space."
        case errors.LockNotAvailable() | errors.QueryCanceled():
            return "Another session holds a lock that this needs, or a time limit was reached. Nothing is lost. Retrying."
        case psycopg.OperationalError():
            return f"{UNCONFIRMED} Check that the server runs and can be reached."
        case _:
            return UNCONFIRMED


def failed(messages: Sequence[Outgoing], error: BrokerUnavailable, *, committing: bool) -> Published:
    """What became of messages written in one transaction. Until the commit, none is stored.

    A commit that the server refused did not happen either; one that it never answered may have.
    """
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
