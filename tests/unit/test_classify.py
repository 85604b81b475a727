"""Which kind of failure is an exception? Everything that needs no third-party package."""

import asyncio
import decimal
import email.errors
import email.message
import errno
import ftplib
import http.client
import io
import json
import multiprocessing
import shutil
import smtplib
import socket
import sqlite3
import ssl
import struct
import subprocess
import urllib.error
import xml.etree.ElementTree as ET

import pytest

from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, raised, table
from unpoison.classify.classifier import Classified, classify
from unpoison.errors import (
    BrokerUnavailable,
    ConfigError,
    Discard,
    LetterNotFound,
    PayloadError,
    Permanent,
    RetryLater,
    Steering,
    Throttled,
)


class OutOfStock(ValueError):
    """A user's own exception, below a builtin."""


class ShipmentFailed(Exception):
    """A user's own exception that nothing is known about."""


def stand_in(full_name, *bases, **attributes):
    """An exception of a class with this full name, as a package that is not installed here would raise it."""
    module, _, name = full_name.rpartition(".")
    error = type(name, bases or (Exception,), {"__module__": module})("text")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


@table(
    (ValueError(), PERMANENT),
    (TypeError(), PERMANENT),
    (KeyError("total"), PERMANENT),
    (raised(b"\xff".decode), PERMANENT),
    (raised("\ud800".encode), PERMANENT),
    (raised(json.loads, "{"), PERMANENT),
    (OutOfStock(), PERMANENT),
    (raised(decimal.Decimal, "nine"), PERMANENT),
    (raised(struct.unpack, "i", b""), PERMANENT),
    (raised(ET.fromstring, "<a>"), PERMANENT),
    (ConnectionError(), TRANSIENT),
    (ConnectionResetError(errno.ECONNRESET, "reset"), TRANSIENT),
    (BrokenPipeError(), TRANSIENT),
    (TimeoutError(), TRANSIENT),
    (TimeoutError(), TRANSIENT),
    (asyncio.IncompleteReadError(b"", 4), TRANSIENT),
    (multiprocessing.TimeoutError(), TRANSIENT),
    (subprocess.TimeoutExpired("convert", 5), TRANSIENT),
    (OSError("no number"), TRANSIENT),
    (AttributeError(), BUG),
    (NameError(), BUG),
    (UnboundLocalError(), BUG),
    (ImportError(), BUG),
    (ModuleNotFoundError(), BUG),
    (IndexError(), BUG),
    (AssertionError(), BUG),
    (NotImplementedError(), BUG),
    (RecursionError(), BUG),
    (raised(io.StringIO().fileno), BUG),
    (Exception(), UNKNOWN),
    (RuntimeError(), UNKNOWN),
    (LookupError(), UNKNOWN),
    (ZeroDivisionError(), UNKNOWN),
    (OverflowError(), PERMANENT),
    (raised(pow, 10.0, 400), PERMANENT),
    (StopIteration(), UNKNOWN),
    (MemoryError(), UNKNOWN),
    (SystemExit(1), UNKNOWN),
    (KeyboardInterrupt(), UNKNOWN),
    (asyncio.CancelledError(), UNKNOWN),
    (ShipmentFailed(), UNKNOWN),
    (subprocess.CalledProcessError(1, "convert"), UNKNOWN),
)
def test_python_s_own_exceptions_have_a_classification(error, expected):
    assert classify(error).classification is expected


@table(
    (raised(open, "/no/such/file"), PERMANENT),
    (raised(open, "/"), PERMANENT),
    (FileNotFoundError("without a number"), PERMANENT),
    (PermissionError(errno.EACCES, "no"), PERMANENT),
    (IsADirectoryError(), PERMANENT),
    (NotADirectoryError(), PERMANENT),
    (FileExistsError(), PERMANENT),
    (raised(open, "a" * 5_000), PERMANENT),
    (OSError(errno.ELOOP, "loop"), PERMANENT),
    (OSError(errno.EINVAL, "argument"), PERMANENT),
    (OSError(errno.EOPNOTSUPP, "unsupported"), PERMANENT),
    (shutil.SameFileError(), PERMANENT),
    (OSError(errno.ENOSPC, "disk full"), TRANSIENT),
    (OSError(errno.EDQUOT, "quota"), TRANSIENT),
    (OSError(errno.EMFILE, "open files"), TRANSIENT),
    (OSError(errno.EROFS, "turned read-only"), TRANSIENT),
    (OSError(errno.EIO, "disk"), TRANSIENT),
    (OSError(errno.ENETUNREACH, "network"), TRANSIENT),
    (OSError(99_999, "no such number"), TRANSIENT),
    (BlockingIOError(), TRANSIENT),
    (InterruptedError(), TRANSIENT),
)
def test_an_os_error_that_no_retry_can_cure_is_permanent_and_the_others_are_transient(error, expected):
    assert classify(error).classification is expected


@table(
    (ssl.SSLError(1, "handshake failure"), TRANSIENT),
    (ssl.SSLCertVerificationError(1, "certificate has expired"), TRANSIENT),
    (socket.gaierror(2, "on some systems 2 is also ENOENT"), TRANSIENT),
    (socket.gaierror(socket.EAI_NONAME, "unknown name"), TRANSIENT),
    (type("Ours", (OSError,), {})(errno.EINVAL, "a number of their own"), TRANSIENT),
)
def test_a_number_that_is_no_errno_is_not_read_as_one(error, expected):
    assert classify(error).classification is expected


@table(
    (http.client.RemoteDisconnected("gone"), TRANSIENT),
    (http.client.IncompleteRead(b""), TRANSIENT),
    (http.client.BadStatusLine("?"), TRANSIENT),
    (http.client.InvalidURL(), PERMANENT),
    (urllib.error.URLError(ConnectionRefusedError()), TRANSIENT),
    (urllib.error.URLError("timed out"), TRANSIENT),
    (urllib.error.URLError(FileNotFoundError()), PERMANENT),
    (smtplib.SMTPServerDisconnected("gone"), TRANSIENT),
    (smtplib.SMTPDataError(451, b"try later"), TRANSIENT),
    (smtplib.SMTPDataError(554, b"spam"), PERMANENT),
    (smtplib.SMTPAuthenticationError(535, b"wrong password"), TRANSIENT),
    (smtplib.SMTPRecipientsRefused({"a@b": (550, b"no such user"), "c@d": (553, b"bad name")}), PERMANENT),
    (smtplib.SMTPRecipientsRefused({"a@b": (550, b"no such user"), "c@d": (450, b"greylisted")}), TRANSIENT),
    (smtplib.SMTPNotSupportedError(), PERMANENT),
    (ftplib.error_temp("450"), TRANSIENT),
    (ftplib.error_perm("550"), PERMANENT),
    (email.errors.HeaderParseError(), UNKNOWN),
)
def test_clients_of_the_standard_library_are_known(error, expected):
    assert classify(error).classification is expected


def sqlite_error(statement):
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("create table orders (id integer primary key)")
        connection.execute("insert into orders values (1)")
        return raised(connection.execute, statement)
    finally:
        connection.close()


def sqlite_busy(path):
    first, second = sqlite3.connect(path), sqlite3.connect(path, timeout=0)
    try:
        first.execute("begin immediate")
        return raised(second.execute, "begin immediate")
    finally:
        first.close()
        second.close()


@table(
    (sqlite_error("insert into orders values (1)"), PERMANENT),
    (sqlite_error("select * from customers"), PERMANENT),
    (sqlite_error("selec"), PERMANENT),
    (sqlite3.OperationalError("without a code"), TRANSIENT),
    (sqlite3.IntegrityError("without a code"), PERMANENT),
    (sqlite3.InternalError("without a code"), UNKNOWN),
)
def test_sqlite_errors_go_by_their_code_and_else_by_their_class(error, expected):
    assert classify(error).classification is expected


def test_a_locked_sqlite_file_is_transient_and_the_rule_names_the_code(tmp_path):
    found = classify(sqlite_busy(tmp_path / "shop.db"))
    assert found.classification is TRANSIENT
    assert "SQLITE_BUSY" in found.rule


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RetryLater(after=30), (TRANSIENT, 30.0, False, False)),
        (RetryLater(after=0), (TRANSIENT, 0.0, False, False)),
        (Throttled(retry_after=5), (THROTTLED, 5.0, False, False)),
        (Throttled(), (THROTTLED, None, False, False)),
        (Permanent("unknown customer"), (PERMANENT, None, True, False)),
        (Discard("test order"), (PERMANENT, None, True, True)),
        (Steering(), (UNKNOWN, None, True, False)),
    ],
)
def test_what_a_handler_raises_to_steer_is_taken_at_its_word(error, expected):
    found = classify(error)
    assert (found.classification, found.retry_after, found.charged, found.discard) == expected


@pytest.mark.parametrize(
    "broken", [{}, {"after": "soon"}, {"after": float("nan")}, {"after": -1}, {"after": property(lambda self: 1 / 0)}]
)
def test_a_steering_subclass_that_forgot_its_delay_is_retried_by_backoff(broken):
    kind = type("Later", (RetryLater,), {"__init__": lambda self: None, **broken})
    assert classify(kind()) == Classified(TRANSIENT, classify(kind()).rule, None, charged=False)


@table(
    (BrokerUnavailable("away"), TRANSIENT),
    (PayloadError("NaN"), PERMANENT),
    (ConfigError("RetryLater(after=-1)"), BUG),
    (LetterNotFound("1", "orders"), UNKNOWN),
)
def test_unpoison_s_own_errors_in_a_handler_have_a_classification(error, expected):
    assert classify(error).classification is expected


def http_error(status, **headers):
    fields = email.message.Message()
    for name, value in headers.items():
        fields[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://shop.example", status, "text", fields, None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, TRANSIENT),  # says nothing; the class is an OSError
        (302, PERMANENT),
        *((status, PERMANENT) for status in (400, 401, 403, 404, 405, 409, 410, 413, 418, 422, 451, 499)),
        *((status, TRANSIENT) for status in (408, 425, 500, 501, 502, 503, 504, 520, 599)),
        (429, THROTTLED),
        (600, TRANSIENT),
        (None, TRANSIENT),
    ],
)
def test_http_status_decides(status, expected):
    assert classify(http_error(status)).classification is expected


DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("status", "headers", "classification", "wait"),
    [
        (429, {"Retry_After": "120"}, THROTTLED, 120.0),
        (429, {"Retry_After": " 2 "}, THROTTLED, 2.0),
        (429, {"Retry_After": "0.5"}, THROTTLED, 0.5),
        (429, {"Retry_After": "0"}, THROTTLED, 0.0),
        (429, {}, THROTTLED, None),
        (503, {"Retry_After": "7"}, THROTTLED, 7.0),
        (503, {}, TRANSIENT, None),
        (500, {"Retry_After": "7"}, TRANSIENT, None),
        (404, {"Retry_After": "7"}, PERMANENT, None),
        (503, {"Date": DATE, "Retry_After": "Wed, 21 Oct 2026 07:30:00 GMT"}, THROTTLED, 120.0),
        (429, {"Date": DATE, "Retry_After": "Wed, 21 Oct 2026 09:29:30 +0200"}, THROTTLED, 90.0),
        (429, {"Date": DATE, "Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, THROTTLED, 0.0),
        (429, {"Retry_After": "Wed, 21 Oct 2026 07:30:00 GMT"}, THROTTLED, None),
        (429, {"Date": "today", "Retry_After": "Wed, 21 Oct 2026 07:30:00 GMT"}, THROTTLED, None),
        (429, {"Date": DATE, "Retry_After": "Wed, 21 Oct 2026 07:30:00 -0000"}, THROTTLED, None),
        (429, {"Date": DATE, "Retry_After": "tomorrow"}, THROTTLED, None),
        (429, {"Retry_After": "-5"}, THROTTLED, None),
        (429, {"Retry_After": "nan"}, THROTTLED, None),
        (429, {"Retry_After": "inf"}, THROTTLED, None),
        (429, {"Retry_After": ""}, THROTTLED, None),
        (429, {"Date": DATE, "Retry_After": "Wed, 99 Oct 99999 99:99:99 GMT"}, THROTTLED, None),
    ],
)
def test_retry_after_is_honoured_in_seconds_and_as_a_date_beside_the_server_s_own_date(status, headers, classification, wait):
    found = classify(http_error(status, **headers))
    assert (found.classification, found.retry_after, found.charged) == (classification, wait, classification is not THROTTLED)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry_After_Ms": "1500"}, 1.5),
        ({"RateLimit_Reset": "30"}, 30.0),
        ({"RateLimit": "limit=100, remaining=0, reset=50"}, 50.0),
        ({"RateLimit": '"default";r=0;t=20'}, 20.0),
        ({"RateLimit": '"burst";r=0, "daily";r=9;t=3600'}, 3600.0),
        ({"RateLimit": '"default";r=50'}, None),
        ({"RateLimit": "limit=100, start=5"}, None),
        ({"X_RateLimit_Reset": "12"}, 12.0),
        ({"X_Rate_Limit_Reset": "12.5"}, 12.5),
        ({"X_RateLimit_Reset": "1792567740", "Date": DATE}, 60.0),
        ({"X_RateLimit_Reset": "1792567740000", "Date": DATE}, 60.0),
        ({"X_RateLimit_Reset": "1792567000", "Date": DATE}, 0.0),
        ({"X_RateLimit_Reset": "1792567740"}, None),
        ({"X_Rate_Limit_Reset": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": DATE}, 30.0),
        ({"X_RateLimit_Reset": "never"}, None),
        ({"Retry_After": "3", "RateLimit_Reset": "30"}, 3.0),
        ({"Retry_After": "soon", "RateLimit_Reset": "30"}, 30.0),
        ({"RateLimit": '"default";r=0;t=20', "X_RateLimit_Reset": "99"}, 20.0),
    ],
)
def test_a_wait_is_read_from_every_header_in_which_servers_say_it(headers, wait):
    found = classify(http_error(429, **headers))
    assert (found.classification, found.retry_after) == (THROTTLED, wait)


@table(
    (stand_in("psycopg2.errors.SerializationFailure", type(stand_in("psycopg2.Error")), pgcode="40001"), TRANSIENT),
    (stand_in("psycopg2.errors.UniqueViolation", type(stand_in("psycopg2.Error")), pgcode="23505"), PERMANENT),
    (stand_in("psycopg2.OperationalError"), TRANSIENT),
    (stand_in("psycopg2.InterfaceError"), TRANSIENT),
    (stand_in("boto3.exceptions.RetriesExceededError"), TRANSIENT),
    (stand_in("s3transfer.exceptions.RetriesExceededError"), TRANSIENT),
    (stand_in("shop.requests.exceptions.HTTPError"), UNKNOWN),
    (stand_in("requests.exceptions.SomethingNew"), UNKNOWN),
    (stand_in("shop.HTTPError", status_code=503, response=http_error(503), sqlstate="40001", code=lambda: 1 / 0), UNKNOWN),
)
def test_classes_are_known_by_their_full_name_and_others_are_not_looked_into(error, expected):
    assert classify(error).classification is expected


def test_the_nearest_known_class_decides():
    both = type("Both", (TimeoutError, ValueError), {})
    assert classify(both()).classification is TRANSIENT
    both = type("Both", (ValueError, TimeoutError), {})
    assert classify(both()).classification is PERMANENT


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("total"), "KeyError: the same data fails the same way again"),
        (http_error(503), "urllib.error.HTTPError: HTTP 503 is a server that may recover"),
        (http_error(404), "urllib.error.HTTPError: HTTP 404 refuses the request, and would refuse it again"),
        (http_error(429, Retry_After="30"), "urllib.error.HTTPError: HTTP 429 asks to slow down for 30 s"),
        (OSError(errno.ENAMETOOLONG, ""), "OSError: ENAMETOOLONG is answered the same until something is changed"),
        (
            urllib.error.URLError(TimeoutError()),
            "urllib.error.URLError: around TimeoutError: the other side did not answer in time",
        ),
        (Permanent("x"), "the handler raised unpoison.errors.Permanent"),
    ],
)
def test_the_rule_says_in_words_what_was_seen_and_what_it_means(error, words):
    assert classify(error).rule == words


def test_a_rule_never_holds_what_is_in_the_exception_s_text():
    assert "secret" not in classify(ValueError("secret")).rule
    assert "secret" not in classify(http_error(429, secret="secret", Retry_After="secret")).rule


def test_a_rule_stays_short_and_can_be_stored_whatever_the_class_is_called():
    odd = type("Odd", (ValueError,), {"__module__": "\ud800" * 100_000})
    rule = classify(odd()).rule
    assert len(rule) < 1_000
    assert rule.encode()
