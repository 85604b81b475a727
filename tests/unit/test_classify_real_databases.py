"""The classifier beside the real exceptions of MySQL's drivers and of Django, raised by themselves on what a server answers."""

import contextlib
import importlib.util

import django
import django.conf
import django.core.exceptions
import django.db
import django.db.models
import django.db.transaction
import mysql.connector
import mysql.connector.pooling
import pymysql
import pytest
import sqlalchemy

from tests.unit import classifying
from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, check, raised, table
from tests.unit.mysql_server import mysql_that_refuses
from unpoison.classify.classifier import classify

closed_port = pytest.fixture(classifying.closed_port)

CODES = pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1205, TRANSIENT),
        (1213, TRANSIENT),
        (1040, TRANSIENT),
        (1045, TRANSIENT),
        (1053, TRANSIENT),
        (1114, TRANSIENT),
        (1203, TRANSIENT),
        (1290, TRANSIENT),
        (1317, TRANSIENT),
        (3024, TRANSIENT),
        (3572, TRANSIENT),
        (4031, TRANSIENT),
        (1226, THROTTLED),
        (1048, PERMANENT),
        (1054, PERMANENT),
        (1062, PERMANENT),
        (1064, PERMANENT),
        (1142, PERMANENT),
        (1146, PERMANENT),
        (1153, PERMANENT),
        (1264, PERMANENT),
        (1366, PERMANENT),
        (1406, PERMANENT),
        (1452, PERMANENT),
        (3140, PERMANENT),
        (3819, PERMANENT),
        (1644, UNKNOWN),
    ],
)


@pytest.fixture(scope="module")
def server():
    with mysql_that_refuses() as port:
        yield port


def pymysql_run(port, statement):
    with contextlib.closing(pymysql.connect(host="127.0.0.1", port=port, user="u")) as connection:
        connection.cursor().execute(statement)


def connector_run(port, statement):
    options = {"host": "127.0.0.1", "port": port, "user": "u", "password": "", "ssl_disabled": True, "use_pure": True}
    connection = mysql.connector.connect(**options)
    try:
        connection.cursor().execute(statement)
    finally:
        with contextlib.suppress(mysql.connector.Error):  # it says goodbye on a connection that may be gone
            connection.close()


@CODES
def test_pymysql_goes_by_the_servers_code(server, code, expected):
    error = raised(pymysql_run, server, f"fail {code}")
    assert error.args[0] == code
    check(error, expected)
    assert f"MySQL error {code}" in classify(error).rule


@CODES
def test_mysql_connector_goes_by_the_servers_code(server, code, expected):
    error = raised(connector_run, server, f"fail {code}")
    assert error.errno == code
    check(error, expected)


@CODES
def test_sqlalchemy_goes_by_the_code_that_its_mysql_driver_brings(server, code, expected):
    engine = sqlalchemy.create_engine(f"mysql+pymysql://u@127.0.0.1:{server}/shop", poolclass=sqlalchemy.NullPool)
    dbapi = engine.dialect.dbapi
    error = raised(pymysql_run, server, f"fail {code}")
    wrapped = sqlalchemy.exc.DBAPIError.instance("fail", {}, error, dbapi.Error, dialect=engine.dialect)
    assert isinstance(wrapped, sqlalchemy.exc.DBAPIError)
    check(wrapped, expected)


@pytest.mark.parametrize("run", [pymysql_run, connector_run])
def test_a_mysql_server_that_is_away_or_hangs_up_is_transient(server, closed_port, run):
    check(raised(run, closed_port, "select 1"), TRANSIENT)
    check(raised(run, server, "cut"), TRANSIENT)
    with mysql_that_refuses(greeting_code=1040) as full:
        check(raised(run, full, "select 1"), TRANSIENT)


def connection_that_was_closed(server):
    connection = pymysql.connect(host="127.0.0.1", port=server, user="u")
    connection.close()
    connection.cursor().execute("select 1")


def test_a_pymysql_connection_that_was_closed_is_transient(server):
    error = raised(connection_that_was_closed, server)
    assert isinstance(error, pymysql.err.InterfaceError)
    check(error, TRANSIENT)


@table(
    (pymysql.err.OperationalError("without a code"), TRANSIENT),
    (pymysql.err.OperationalError(9_999, "a code that nobody knows"), TRANSIENT),
    (pymysql.err.IntegrityError(9_999, "a code that nobody knows"), PERMANENT),
    (pymysql.err.DataError(), PERMANENT),
    (pymysql.err.ProgrammingError(), PERMANENT),
    (pymysql.err.NotSupportedError(), PERMANENT),
    (pymysql.err.InternalError("Packet sequence number wrong"), UNKNOWN),
    (mysql.connector.errors.OperationalError(), TRANSIENT),
    (mysql.connector.errors.InterfaceError(), TRANSIENT),
    (mysql.connector.errors.IntegrityError(), PERMANENT),
    (mysql.connector.errors.ProgrammingError(), PERMANENT),
    (mysql.connector.errors.ReadTimeoutError(), TRANSIENT),
    (mysql.connector.errors.PoolError("Failed getting connection; pool exhausted"), TRANSIENT),
    (mysql.connector.errors.DatabaseError(), UNKNOWN),
)
def test_mysql_drivers_without_a_telling_code_go_by_class(error, expected):
    check(error, expected)


@pytest.fixture
def mysqlclient():
    """The exception classes of mysqlclient, by their real names and bases: it has no wheel, and building it takes C headers."""
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("MySQLdb._exceptions", loader=None))
    bases = {"MySQLError": "Exception", "Error": "MySQLError", "InterfaceError": "Error", "DatabaseError": "Error"}
    for name in ("DataError", "OperationalError", "IntegrityError", "InternalError", "ProgrammingError", "NotSupportedError"):
        bases[name] = "DatabaseError"
    for name, base in bases.items():
        setattr(module, name, type(name, (getattr(module, base, Exception),), {"__module__": "MySQLdb._exceptions"}))
    return module


def test_mysqlclient_goes_by_the_servers_code_and_else_by_class(mysqlclient):
    check(mysqlclient.OperationalError(1213, "Deadlock found when trying to get lock"), TRANSIENT)
    check(mysqlclient.OperationalError(2006, "Server has gone away"), TRANSIENT)
    check(mysqlclient.OperationalError(1054, "Unknown column"), PERMANENT)
    check(mysqlclient.IntegrityError(1062, "Duplicate entry"), PERMANENT)
    check(mysqlclient.ProgrammingError(1064, "You have an error in your SQL syntax"), PERMANENT)
    check(mysqlclient.DataError(1406, "Data too long"), PERMANENT)
    check(mysqlclient.InterfaceError(0, ""), TRANSIENT)
    check(mysqlclient.InternalError(), UNKNOWN)


@pytest.fixture(scope="module")
def django_database():
    """Django on a SQLite database in memory, with one table."""
    if not django.conf.settings.configured:
        databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        django.conf.settings.configure(DATABASES=databases, LOGGING_CONFIG=None)
        django.setup()
    with django.db.connection.cursor() as cursor:
        cursor.execute("create table orders (id integer primary key, total integer check (total >= 0))")
        cursor.execute("insert into orders values (1, 1)")
    yield django.db.connection
    django.db.connection.close()


def django_run(database, statement):
    with database.cursor() as cursor:
        cursor.execute(statement)


def test_django_goes_by_the_exception_of_its_driver(django_database):
    twice = raised(django_run, django_database, "insert into orders values (1, 2)")
    missing = raised(django_run, django_database, "select * from customers")
    assert isinstance(twice, django.db.IntegrityError)
    assert isinstance(missing, django.db.OperationalError), "its class alone would be transient"
    check(twice, PERMANENT)
    check(missing, PERMANENT)
    assert "around sqlite3.OperationalError: SQLITE_ERROR" in classify(missing).rule


def from_driver(outer, cause):
    outer.__cause__ = cause
    return outer


@table(
    (from_driver(django.db.OperationalError(1213, "x"), pymysql.err.OperationalError(1213, "x")), TRANSIENT),
    (from_driver(django.db.OperationalError(1054, "x"), pymysql.err.OperationalError(1054, "x")), PERMANENT),
    (from_driver(django.db.DatabaseError(), Exception("of a driver that nobody knows")), UNKNOWN),
    (django.db.OperationalError("made without a cause"), TRANSIENT),
    (django.db.InterfaceError("connection already closed"), TRANSIENT),
    (django.db.IntegrityError(), PERMANENT),
    (django.db.DataError(), PERMANENT),
    (django.db.ProgrammingError(), PERMANENT),
    (django.db.NotSupportedError(), PERMANENT),
    (django.db.DatabaseError(), UNKNOWN),
    (django.db.models.ProtectedError("in use", set()), PERMANENT),
    (django.db.transaction.TransactionManagementError(), UNKNOWN),
    (django.core.exceptions.ValidationError("no email"), PERMANENT),
    (django.core.exceptions.FieldError("no such field"), BUG),
    (django.core.exceptions.SynchronousOnlyOperation(), BUG),
    (django.core.exceptions.ObjectDoesNotExist(), UNKNOWN),
)
def test_other_exceptions_of_django(error, expected):
    check(error, expected)
