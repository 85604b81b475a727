"""The classifier beside the real exceptions of databases' clients, raised by the clients themselves where that is cheap."""

import asyncio
import contextlib
import socket
import threading

import asyncpg
import bson
import psycopg
import pymongo
import pymongo.errors
import pytest
import redis
import sqlalchemy
import sqlalchemy.orm.exc
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi

from tests.unit import classifying
from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, check, raised, table
from unpoison.classify.classifier import classify

closed_port = pytest.fixture(classifying.closed_port)
deaf_port = pytest.fixture(classifying.deaf_port)

SQLSTATES = pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("08006", TRANSIENT),
        ("08P01", TRANSIENT),
        ("25006", TRANSIENT),
        ("28P01", TRANSIENT),
        ("40001", TRANSIENT),
        ("40P01", TRANSIENT),
        ("53100", TRANSIENT),
        ("53300", TRANSIENT),
        ("55P03", TRANSIENT),
        ("57014", TRANSIENT),
        ("57P01", TRANSIENT),
        ("57P03", TRANSIENT),
        ("58030", TRANSIENT),
        ("0A000", PERMANENT),
        ("22001", PERMANENT),
        ("22P02", PERMANENT),
        ("23503", PERMANENT),
        ("23505", PERMANENT),
        ("42601", PERMANENT),
        ("42P01", PERMANENT),
        ("42501", PERMANENT),
        ("25P02", UNKNOWN),
        ("P0001", UNKNOWN),
        ("XX000", UNKNOWN),
    ],
)


@SQLSTATES
def test_psycopg_goes_by_sqlstate(sqlstate, expected):
    check(psycopg.errors.lookup(sqlstate)("text"), expected)


def test_a_psycopg_connection_that_is_refused_is_transient(closed_port):
    check(raised(psycopg.connect, f"host=127.0.0.1 port={closed_port}"), TRANSIENT)


@table(
    (psycopg.errors.ConnectionTimeout("timeout expired"), TRANSIENT),
    (psycopg.OperationalError("server closed the connection unexpectedly"), TRANSIENT),
    (psycopg.IntegrityError(), PERMANENT),
    (psycopg.DataError(), PERMANENT),
    (psycopg.ProgrammingError(), PERMANENT),
    (psycopg.InternalError(), UNKNOWN),
    (psycopg.errors.ObjectNotInPrerequisiteState(), TRANSIENT),
    (type("Ours", (psycopg.errors.UniqueViolation,), {})(), PERMANENT),
)
def test_psycopg_without_a_telling_sqlstate_goes_by_class(error, expected):
    check(error, expected)


@SQLSTATES
def test_asyncpg_goes_by_sqlstate(sqlstate, expected):
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": "text", "S": "ERROR"})
    assert error.sqlstate == sqlstate
    check(error, expected)


def test_an_asyncpg_connection_that_is_refused_or_not_answered_is_transient(closed_port, deaf_port):
    def connect(port):
        asyncio.run(asyncpg.connect(host="127.0.0.1", port=port, user="u", password="p", ssl=False, timeout=0.05))

    check(raised(connect, closed_port), TRANSIENT)
    check(raised(connect, deaf_port), TRANSIENT)


@table(
    (asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), TRANSIENT),
    (asyncpg.InterfaceError("connection is closed"), TRANSIENT),
    (asyncpg.InvalidCachedStatementError("the tables changed"), TRANSIENT),
    (asyncpg.exceptions.OutdatedSchemaCacheError("the tables changed"), TRANSIENT),
    (asyncpg.exceptions.ClientConfigurationError("x"), PERMANENT),
    (asyncpg.DataError("invalid input for query argument $1"), PERMANENT),
    (asyncpg.exceptions.ProtocolError("x"), UNKNOWN),
)
def test_other_exceptions_of_asyncpg(error, expected):
    check(error, expected)


@pytest.fixture
def engine():
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0)
    with engine.begin() as connection:
        connection.exec_driver_sql("create table orders (id integer primary key, day date)")
        connection.exec_driver_sql("insert into orders values (1, '2026-10-21')")
    yield engine
    engine.dispose()


def test_sqlalchemy_goes_by_the_exception_that_it_wraps(engine):
    orders = sqlalchemy.table("orders", sqlalchemy.column("id"), sqlalchemy.column("day", sqlalchemy.Date))
    with engine.connect() as connection:
        twice = raised(connection.exec_driver_sql, "insert into orders values (1, null)")
        missing = raised(connection.exec_driver_sql, "select * from customers")
        no_date = raised(connection.execute, orders.insert().values(id=2, day="today"))
    check(twice, PERMANENT)
    check(missing, PERMANENT)
    assert isinstance(missing, sqlalchemy.exc.OperationalError), "its class alone would be transient"
    assert type(no_date) is sqlalchemy.exc.StatementError
    check(no_date, PERMANENT)
    assert "around sqlite3.IntegrityError: SQLITE_CONSTRAINT" in classify(twice).rule


def test_a_sqlalchemy_pool_without_a_free_connection_is_transient(engine):
    with engine.connect():
        error = raised(engine.connect)
    assert isinstance(error, sqlalchemy.exc.TimeoutError)
    check(error, TRANSIENT)


def test_a_database_that_sqlalchemy_cannot_reach_is_transient(closed_port):
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://u@127.0.0.1:{closed_port}/d")
    error = raised(engine.connect)
    assert isinstance(error.orig, psycopg.OperationalError)
    check(error, TRANSIENT)
    engine.dispose()


def wrapped(orig, *, kind=sqlalchemy.exc.DBAPIError, lost=False):
    return kind("select 1", {}, orig, connection_invalidated=lost)


@table(
    (wrapped(psycopg.errors.SerializationFailure()), TRANSIENT),
    (wrapped(psycopg.errors.UniqueViolation()), PERMANENT),
    (wrapped(psycopg.errors.UniqueViolation(), lost=True), TRANSIENT),
    (wrapped(AsyncAdapt_asyncpg_dbapi.Error("x", asyncpg.DeadlockDetectedError("x"))), TRANSIENT),
    (wrapped(AsyncAdapt_asyncpg_dbapi.Error("x", asyncpg.UniqueViolationError("x"))), PERMANENT),
    (wrapped(AsyncAdapt_asyncpg_dbapi.Error("x", asyncpg.InterfaceError("connection is closed"))), TRANSIENT),
    (wrapped(Exception("of a driver that nobody knows"), kind=sqlalchemy.exc.OperationalError), TRANSIENT),
    (wrapped(Exception("of a driver that nobody knows"), kind=sqlalchemy.exc.IntegrityError), PERMANENT),
    (wrapped(Exception("of a driver that nobody knows"), kind=sqlalchemy.exc.ProgrammingError), PERMANENT),
    (wrapped(Exception("of a driver that nobody knows")), UNKNOWN),
    (wrapped(None), UNKNOWN),
    (sqlalchemy.exc.DisconnectionError(), TRANSIENT),
    (sqlalchemy.exc.NoResultFound(), UNKNOWN),
    (sqlalchemy.orm.exc.StaleDataError(), TRANSIENT),
)
def test_other_exceptions_of_sqlalchemy(error, expected):
    check(error, expected)


@contextlib.contextmanager
def redis_that_answers(line):
    """A server that answers every command with the same line."""

    def serve():
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                while connection.recv(65_536):
                    connection.sendall(line.encode() + b"\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def redis_get(port, timeout=5):
    with contextlib.closing(redis.Redis(port=port, socket_timeout=timeout, protocol=2, driver_info=None, retry=None)) as client:
        client.get("key")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-LOADING Redis is loading the dataset in memory", TRANSIENT),
        ("-READONLY You can't write against a read only replica.", TRANSIENT),
        ("-OOM command not allowed when used memory > 'maxmemory'.", TRANSIENT),
        ("-CLUSTERDOWN The cluster is down", TRANSIENT),
        ("-TRYAGAIN Multiple keys request during rehashing of slot", TRANSIENT),
        ("-MASTERDOWN Link with MASTER is down", TRANSIENT),
        ("-BUSY Redis is busy running a script.", TRANSIENT),
        ("-MISCONF Redis is configured to save RDB snapshots, but it can't persist", TRANSIENT),
        ("-NOREPLICAS Not enough good replicas to write.", TRANSIENT),
        ("-NOAUTH Authentication required.", TRANSIENT),
        ("-ERR max number of clients reached", TRANSIENT),
        ("-WRONGTYPE Operation against a key holding the wrong kind of value", PERMANENT),
        ("-ERR value is not an integer or out of range", PERMANENT),
        ("-NOPERM this user has no permissions", PERMANENT),
        ("-NOSCRIPT No matching script.", UNKNOWN),
        ("-EXECABORT Transaction discarded because of previous errors.", UNKNOWN),
    ],
)
def test_redis_goes_by_what_the_server_answers(line, expected):
    with redis_that_answers(line) as port:
        check(raised(redis_get, port), expected)


def test_a_redis_server_that_is_away_or_silent_is_transient(closed_port, deaf_port):
    check(raised(redis_get, closed_port), TRANSIENT)
    check(raised(redis_get, deaf_port, timeout=0.02), TRANSIENT)


@table(
    (redis.exceptions.LockError("Unable to acquire lock"), TRANSIENT),
    (redis.exceptions.LockNotOwnedError(), TRANSIENT),
    (redis.exceptions.WatchError(), TRANSIENT),
    (redis.exceptions.DataError("Invalid input of type: 'dict'"), PERMANENT),
    (redis.exceptions.RedisError(), UNKNOWN),
)
def test_other_exceptions_of_redis(error, expected):
    check(error, expected)


def test_a_mongodb_server_that_is_away_is_transient(closed_port):
    with pymongo.MongoClient(port=closed_port, serverSelectionTimeoutMS=20) as client:
        error = raised(client.admin.command, "ping")
    assert isinstance(error, pymongo.errors.ServerSelectionTimeoutError)
    check(error, TRANSIENT)


def bulk(*codes):
    return pymongo.errors.BulkWriteError({"writeErrors": [{"code": code, "errmsg": "m"} for code in codes]})


def failed(code, *labels):
    return pymongo.errors.OperationFailure("m", code, {"errorLabels": list(labels)})


@table(
    (pymongo.errors.AutoReconnect("gone"), TRANSIENT),
    (pymongo.errors.NotPrimaryError("stepped down"), TRANSIENT),
    (pymongo.errors.ExecutionTimeout("slow", 50), TRANSIENT),
    (pymongo.errors.WTimeoutError("slow", 64), TRANSIENT),
    (pymongo.errors.CursorNotFound("gone", 43), TRANSIENT),
    (pymongo.errors.DuplicateKeyError("twice", 11000), PERMANENT),
    (failed(112), TRANSIENT),
    (failed(251, "TransientTransactionError"), TRANSIENT),
    (failed(99_999, "RetryableWriteError"), TRANSIENT),
    (failed(16500), THROTTLED),
    (failed(462, "SystemOverloadedError", "RetryableError"), THROTTLED),
    (failed(121), PERMANENT),
    (failed(13), PERMANENT),
    (failed(18), TRANSIENT),
    (failed(99_999), UNKNOWN),
    (bulk(11000, 11000), PERMANENT),
    (bulk(11000, 112), TRANSIENT),
    (bulk(11000, 99_999), UNKNOWN),
    (bulk(), UNKNOWN),
    (pymongo.errors.InvalidOperation(), BUG),
    (raised(bson.ObjectId, "x"), PERMANENT),
    (raised(bson.encode, {"a": object()}), PERMANENT),
    (raised(bson.decode, b"x"), PERMANENT),
)
def test_pymongo_goes_by_label_and_code_and_else_by_class(error, expected):
    check(error, expected)
