"""What status and error codes mean: HTTP, SQL, MySQL, SQLite, AWS, gRPC, MongoDB, Redis, SMTP, errno, AMQP, Kafka, JetStream.

None means that the code alone does not tell; then the class of the exception decides. A refused login of a database,
a message store or a mail server is transient: passwords are rotated, and it is never the message's fault.
"""

import errno
from collections.abc import Collection, Mapping
from typing import NamedTuple

from unpoison.model.verdict import ErrorClassification


class Meaning(NamedTuple):
    """What an exception or a code means, and why, in words for the person on call."""

    classification: ErrorClassification
    why: str
    retry_after: float | None = None


TRANSIENT = ErrorClassification.TRANSIENT
THROTTLED = ErrorClassification.THROTTLED
PERMANENT = ErrorClassification.PERMANENT
BUG = ErrorClassification.BUG
UNKNOWN = ErrorClassification.UNKNOWN


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SQLSTATES: Mapping[str, tuple[ErrorClassification, str]] = {
    "08": (TRANSIENT, "the connection failed"),
    "25006": (TRANSIENT, "this server is read-only, as after a change of roles"),
    "25P03": (TRANSIENT, "the transaction was idle for too long"),
    "25P04": (TRANSIENT, "the transaction took too long"),
    "28": (TRANSIENT, "the login was refused, which is not the message's fault"),
    "40": (TRANSIENT, "the transaction lost against another one"),
    "53": (TRANSIENT, "the server is short of memory, disk or connections"),
    "55006": (TRANSIENT, "the object is in use"),
    "55P03": (TRANSIENT, "the lock was not free in time"),
    "57": (TRANSIENT, "the statement was cancelled or the server is restarting"),
    "58": (TRANSIENT, "the server has trouble with its own system"),
    "0A": (PERMANENT, "the server does not support this"),
    "21": (PERMANENT, "the statement returns more rows than it may"),
    "22": (PERMANENT, "the data does not fit its column or function"),
    "23": (PERMANENT, "a constraint refuses this data"),
    "42": (PERMANENT, "the statement is wrong or not allowed"),
    "44": (PERMANENT, "a view refuses this data"),
    "54": (PERMANENT, "the statement is too large for the server"),
    "P0001": (UNKNOWN, "a function in the database raised it"),
}

# Server errors are 1000 to 1999 and from 3000 on, those of the client library 2000 to 2999. What is missing here is left to
# the class, which PyMySQL and mysqlclient make "operational" for every code that they do not know.
_MYSQL_TRANSIENT: Mapping[str, frozenset[int]] = {
    "the transaction lost against another one": frozenset({1020, 1205, 1206, 1213, 1412, 1613, 1614, 1615, 1689, 3101, 3572}),
    "the server is away, restarting or short of something": frozenset(
        {1021, 1037, 1038, 1040, 1041, 1047, 1053, 1080, 1114, 1129, 1135, 1203, 1297, 1637, 3032, 3168}
    ),
    "the connection was refused or lost": frozenset(
        {1042, 1043, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031, 2002, 2003, 2004, 2005, 2006, 2012, 2013, 2026, 2027, 2055}
    ),
    "the login was refused, which is not the message's fault": frozenset({1044, 1045, 1130}),
    "the statement was cancelled or took too long": frozenset({1317, 1969, 3024}),
    "this server is read-only, as after a change of roles": frozenset({1290, 1792, 1836, 1874}),
}
_MYSQL_PERMANENT: Mapping[str, frozenset[int]] = {
    "a constraint refuses this data": frozenset({1022, 1048, 1062, 1169, 1216, 1217, 1451, 1452, 1586, 3819, 4025}),
    "the data does not fit its column or function": frozenset(
        {1263, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1416, 1441, 1690, 3140, 3141, 3146, 3156, 3157}
    ),
    "the statement is wrong or not allowed": frozenset(
        {1052, 1054, 1060, 1064, 1110, 1111, 1136, 1142, 1143, 1146, 1149, 1193, 1231, 1305, 1318, 1370}
    ),
    "the statement is too large for the server": frozenset({1118, 1153, 1301, 2020}),
}
_MYSQL_QUOTA = {"the user's quota is used up": {1226}}
_MYSQL_SIGNALLED = {"a trigger or procedure in the database raised it": {1644}}

# Primary result codes: BUSY LOCKED NOMEM READONLY INTERRUPT IOERR FULL CANTOPEN PROTOCOL SCHEMA, and
# ERROR PERM CORRUPT TOOBIG CONSTRAINT MISMATCH MISUSE AUTH RANGE NOTADB.
_SQLITE_TRANSIENT = frozenset({5, 6, 7, 8, 9, 10, 13, 14, 15, 17})
_SQLITE_PERMANENT = frozenset({1, 3, 11, 18, 19, 20, 21, 23, 25, 26})

_AWS_THROTTLED = _names("""
    BandwidthLimitExceeded EC2ThrottledException LimitExceededException ProvisionedThroughputExceededException
    RequestLimitExceeded RequestThrottled RequestThrottledException ServiceQuotaExceededException SlowDown
    ThrottledException Throttling ThrottlingException TooManyRequestsException
""")
# A cancelled DynamoDB transaction met a conflict or a failed condition. Retrying the second a few times costs little;
# giving up the first at once costs a message.
_AWS_TRANSIENT = _names("""
    ExpiredToken ExpiredTokenException OperationAborted PriorRequestNotComplete RequestTimeout RequestTimeoutException
    TransactionCanceledException TransactionConflictException TransactionInProgressException
""")

_GRPC_TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "UNKNOWN"})
_GRPC_PERMANENT = _names("""
    INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION OUT_OF_RANGE
    UNIMPLEMENTED DATA_LOSS
""")

MONGO_LABELS = _names("SystemOverloadedError TransientTransactionError RetryableWriteError RetryableError")
_MONGO_THROTTLED = frozenset({16500})
_MONGO_TRANSIENT = frozenset(
    {6, 7, 18, 24, 46, 50, 89, 91, 112, 134, 189, 251, 262, 391, 9001, 10058, 10107, 11600, 11602, 13435, 13436}
)
_MONGO_PERMANENT = frozenset({2, 9, 13, 14, 20, 22, 26, 48, 52, 59, 66, 72, 121, 10334, 11000, 11001, 12582, 17280})

_REDIS_TRANSIENT = frozenset({"BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "TRYAGAIN", "UNKILLABLE"})

_SMTP_LOGIN = frozenset({530, 534, 535, 538})

# A full disk, too many open files and a file system that turned read-only are missing on purpose: they heal, or
# another host does not have them.
_ERRNO_PERMANENT = _names("""
    EPERM ENOENT E2BIG ENOEXEC EACCES EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENOTTY EFBIG ESPIPE EMLINK ERANGE
    ENAMETOOLONG ENOSYS ELOOP EOVERFLOW EILSEQ EPROTONOSUPPORT ENOPROTOOPT EAFNOSUPPORT EOPNOTSUPP ENOTSUP
    EDESTADDRREQ EMSGSIZE EPROTOTYPE
""")


def http(status: int, asks_to_wait: bool, wait: float | None) -> Meaning | None:
    """`asks_to_wait` says that there is a Retry-After header, `wait` for how many seconds it asks, where that is known."""
    name = f"HTTP {int(status)}"
    if status == 429 or (status == 503 and asks_to_wait):
        return Meaning(THROTTLED, f"{name} asks to slow down{_for(wait)}", wait)
    if 500 <= status <= 599:
        return Meaning(TRANSIENT, f"{name} is a server that may recover")
    if status in (408, 425):
        return Meaning(TRANSIENT, f"{name} asks for another try")
    if 400 <= status <= 499:
        return Meaning(PERMANENT, f"{name} refuses the request, and would refuse it again")
    if 300 <= status <= 399:
        return Meaning(PERMANENT, f"{name} is a redirect that was not followed")
    return None


def _for(wait: float | None) -> str:
    return "" if wait is None else f" for {wait:g} s"


def sqlstate(code: str) -> Meaning | None:
    """By the whole code, else by its class, the first two characters."""
    found = _SQLSTATES.get(code) or _SQLSTATES.get(code[:2])
    return Meaning(found[0], f"SQLSTATE {code}, {found[1]}") if found else None


def _listed(name: str, code: int, **tables: Mapping[str, Collection[int]]) -> Meaning | None:
    """`tables` by classification: why, and the codes that mean it."""
    for classification, table in tables.items():
        for why, codes in table.items():
            if code in codes:
                return Meaning(ErrorClassification(classification), f"{name} {code}, {why}")
    return None


def mysql(code: int) -> Meaning | None:
    return _listed(
        "MySQL error",
        code,
        throttled=_MYSQL_QUOTA,
        unknown=_MYSQL_SIGNALLED,
        transient=_MYSQL_TRANSIENT,
        permanent=_MYSQL_PERMANENT,
    )


def sqlite(code: int, name: str) -> Meaning | None:
    if code & 0xFF in _SQLITE_TRANSIENT:
        return Meaning(TRANSIENT, f"{name} may be over at the next attempt")
    if code & 0xFF in _SQLITE_PERMANENT:
        return Meaning(PERMANENT, f"{name} comes back until the statement, the data or the file is changed")
    return None


def aws(code: str, wait: float | None) -> Meaning | None:
    if code in _AWS_THROTTLED:
        return Meaning(THROTTLED, f"AWS {code} asks to slow down", wait)
    if code in _AWS_TRANSIENT:
        return Meaning(TRANSIENT, f"AWS {code} may be over at the next attempt")
    return None


def grpc(code: str, details: str, wait: float | None) -> Meaning | None:
    if code == "RESOURCE_EXHAUSTED":
        # The same code means "quota used up" and "this call is too large", which no waiting cures.
        if "larger than max" in details:
            return Meaning(PERMANENT, "gRPC RESOURCE_EXHAUSTED, the call is larger than allowed")
        return Meaning(THROTTLED, f"gRPC RESOURCE_EXHAUSTED asks to slow down{_for(wait)}", wait)
    if code in _GRPC_TRANSIENT:
        return Meaning(TRANSIENT, f"gRPC {code} is a server that may recover", wait)
    if code in _GRPC_PERMANENT:
        return Meaning(PERMANENT, f"gRPC {code} refuses the call, and would refuse it again")
    return None


def mongo(labels: Collection[str], codes: frozenset[int]) -> Meaning | None:
    """`codes` are those of all writes that failed: a bulk is given up only if no retry can cure any of them."""
    shown = ", ".join(str(code) for code in sorted(codes)[:5])
    if "SystemOverloadedError" in labels or codes & _MONGO_THROTTLED:
        return Meaning(THROTTLED, "the server is overloaded and asks to slow down")
    if labels:
        return Meaning(TRANSIENT, f"the server labels it {min(labels)}")
    if codes & _MONGO_TRANSIENT:
        return Meaning(TRANSIENT, f"server error {shown} may be over at the next attempt")
    if codes and codes <= _MONGO_PERMANENT:
        return Meaning(PERMANENT, f"server error {shown} refuses this, and would refuse it again")
    return None


def redis(word: str) -> Meaning | None:
    """`word` is the first one of the server's answer."""
    return Meaning(TRANSIENT, f"the server answers {word}, which passes") if word in _REDIS_TRANSIENT else None


def smtp(codes: Collection[int]) -> Meaning | None:
    """Mail servers say "not now" with 4xx and "never" with 5xx; one recipient that can be served later is worth a retry."""
    if login := next((code for code in codes if code in _SMTP_LOGIN), None):
        return Meaning(TRANSIENT, f"SMTP {login}, the login was refused, which is not the message's fault")
    lowest = min((code for code in codes if 400 <= code <= 599), default=None)
    if lowest is None:
        return None
    if lowest < 500:
        return Meaning(TRANSIENT, f"SMTP {lowest} asks to try again later")
    return Meaning(PERMANENT, f"SMTP {lowest} refuses the mail for good")


def operating_system(number: int) -> Meaning | None:
    name = errno.errorcode.get(number, "")
    if name not in _ERRNO_PERMANENT:
        return None
    return Meaning(PERMANENT, f"{name} is answered the same until something is changed")


# Of a channel. Those of a connection (320 forced, 403 login refused, 530 no such virtual host) say nothing about the message.
_AMQP_TRANSIENT = {
    "nobody consumes there": {313},
    "the server is shutting down": {320},
    "another connection has it to itself": {405},
    "the server is short of something": {506},
    "the server had an internal error": {541},
}
_AMQP_PERMANENT = {
    "the message is too large": {311},
    "no queue takes it": {312},
    "the server does not allow it": {403},
    "there is no such queue or exchange": {404},
    "the server refuses it as it is": {406},
    "the server cannot do that": {540},
}

# Numbers of the Kafka protocol; those below -1 are librdkafka's own.
_KAFKA_TRANSIENT = {
    "the servers cannot be reached, or did not answer in time": {-195, -193, -192, -187, -185, -181, -166, -153, 7, 8, 13},
    "too much waits to be sent": {-184},
    "the topic or partition is not known yet, or moves": {-190, -188, 2, 3, 5, 6, 9, 41, 56, 72, 74, 75, 78, 80, 83, 100, 103},
    "the group or transaction is being moved or rebalanced": {-180, -142, 14, 15, 16, 22, 25, 27, 51, 79, 88, 110, 113, 120},
    "too few replicas are in sync": {-183, 19, 20},
    "the login was refused, which is not the message's fault": {-169, 58},
}
_KAFKA_PERMANENT = {
    "the message is too large": {4, 10, 12, 18},
    "the topic, timestamp or record is not valid": {17, 32, 37, 38, 39, 40, 42, 87},
    "the server does not allow it": {29, 30, 31, 44, 53, 65},
    "the value cannot be written or read": {-199, -198, -162, -161, -160, -159},
    "the client or server does not support this": {-186, -170, -165, 21, 35, 43, 76},
    "there is one already": {36},
}
_KAFKA_QUOTA = {"a quota is used up": {89}}

_WRONG_LAST_SEQUENCE = frozenset({10070, 10071, 10164})
"""Error codes of JetStream: the stream or subject has moved on since it was read."""


def amqp(code: int) -> Meaning | None:
    """The reply code with which a channel was closed."""
    return _listed("AMQP", code, transient=_AMQP_TRANSIENT, permanent=_AMQP_PERMANENT)


def kafka(code: int) -> Meaning | None:
    return _listed("Kafka error", code, throttled=_KAFKA_QUOTA, transient=_KAFKA_TRANSIENT, permanent=_KAFKA_PERMANENT)


def jetstream(code: int, detail: int | None) -> Meaning | None:
    """`code` follows HTTP, `detail` is JetStream's own."""
    if detail in _WRONG_LAST_SEQUENCE:
        return Meaning(TRANSIENT, f"JetStream error {detail}, another client was faster")
    if code == 429:
        return Meaning(THROTTLED, f"JetStream {code} asks to slow down")
    if code >= 500 or code in (408, 409):
        return Meaning(TRANSIENT, f"JetStream {code} is a server that may recover")
    return Meaning(PERMANENT, f"JetStream {code} refuses the request, and would refuse it again") if code >= 400 else None
