"""What became of messages that could not be published?

They were written in one transaction. Until it is committed none of them is stored, for certain. A commit that the server refuses
has not happened either; one that it never answered may have.
"""

from collections.abc import Sequence

from psycopg import errors

from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import Published, Refused

_ENDED = ("57P", "08")
"""How the codes begin of a server that ends, or of a connection that is lost: what was being committed may be committed."""


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
