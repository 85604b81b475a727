"""Reads what the server replied from the exceptions of its clients.

A status or an error code tells more than the class of the exception that brings it: one class stands for HTTP 404
and HTTP 503. This module knows where each client keeps the code; `status_codes` knows what it means. Attributes are read only
from classes of packages known here, and even then not trusted: a user's subclass may hold anything in them, or raise.
"""

from collections.abc import Callable, Mapping
from typing import Any

from unpoison.classify import asked_waits, status_codes
from unpoison.classify.asked_waits import call, header
from unpoison.classify.status_codes import PERMANENT, TRANSIENT, Meaning


def read(thing: object, name: str) -> Any:
    """An attribute, or None. A property may raise anything."""
    try:
        return getattr(thing, name, None)
    except BaseException:
        return None


def _http(status: object, headers: object) -> Meaning | None:
    if not isinstance(status, int):
        return None
    return status_codes.http(status, header(headers, "Retry-After") is not None, asked_waits.of_http(headers))


def _requests_or_httpx(error: BaseException) -> Meaning | None:
    response = read(error, "response")
    return _http(read(response, "status_code"), read(response, "headers"))


def _aiohttp(error: BaseException) -> Meaning | None:
    return _http(read(error, "status"), read(error, "headers"))


def _urllib(error: BaseException) -> Meaning | None:
    return _http(read(error, "code"), read(error, "headers"))


def _botocore(error: BaseException) -> Meaning | None:
    """The error code goes before the status: AWS throttles with HTTP 400."""
    response = read(error, "response")
    code = call(call(response, "get", "Error"), "get", "Code")
    metadata = call(response, "get", "ResponseMetadata")
    headers = call(metadata, "get", "HTTPHeaders")
    if not isinstance(code, str):
        return _http(call(metadata, "get", "HTTPStatusCode"), headers)
    if meaning := status_codes.aws(code, asked_waits.of_http(headers)):
        return meaning
    answer = _http(call(metadata, "get", "HTTPStatusCode"), headers)
    return answer and answer._replace(why=f"AWS {code[:80]}, {answer.why}")


def _postgres(error: BaseException) -> Meaning | None:
    """psycopg and asyncpg say `sqlstate`, psycopg2 says `pgcode`."""
    codes = (read(error, "sqlstate"), read(error, "pgcode"))
    code = next((code for code in codes if isinstance(code, str) and len(code) == 5), None)
    return status_codes.sqlstate(code) if code else None


def _mysql(error: BaseException) -> Meaning | None:
    """PyMySQL, mysqlclient and asyncmy have the code as their first argument, mysql-connector as `errno` too."""
    code = next(iter(error.args), None)
    return status_codes.mysql(code) if isinstance(code, int) else None


def _asyncpg_cached_plan(_error: BaseException) -> Meaning:
    """Its SQLSTATE says "not supported", yet asyncpg drops the plan and the next attempt works."""
    return Meaning(TRANSIENT, "the tables changed; the next attempt prepares its statement again")


def _sqlite(error: BaseException) -> Meaning | None:
    code = read(error, "sqlite_errorcode")
    return status_codes.sqlite(code, str(read(error, "sqlite_errorname"))[:80]) if isinstance(code, int) else None


def _sqlalchemy(error: BaseException) -> Meaning | None:
    if read(error, "connection_invalidated") is True:
        return Meaning(TRANSIENT, "the connection to the database was lost")
    return None


def _mongo(error: BaseException) -> Meaning | None:
    labels = [label for label in status_codes.MONGO_LABELS if call(error, "has_error_label", label) is True]
    writes = call(read(error, "details"), "get", "writeErrors")
    codes = [call(write, "get", "code") for write in writes] if isinstance(writes, list) else []
    codes = codes or [read(error, "code")]
    return status_codes.mongo(labels, frozenset(code for code in codes if isinstance(code, int)))


def _redis(error: BaseException) -> Meaning | None:
    text = next(iter(error.args), None)
    return status_codes.redis(text[:40].split(" ", 1)[0]) if isinstance(text, str) else None


def _grpc(error: BaseException) -> Meaning | None:
    code = read(call(error, "code"), "name")
    if not isinstance(code, str):
        return None
    details = call(error, "details")
    return status_codes.grpc(code, details if isinstance(details, str) else "", asked_waits.of_grpc(error))


def _pika_channel(error: BaseException) -> Meaning | None:
    code = read(error, "reply_code")
    return status_codes.amqp(code) if isinstance(code, int) else None


def _amqp(error: BaseException) -> Meaning | None:
    """py-amqp, which kombu uses. A refused login has the code of a refused permission, but names no method of a channel."""
    code, method = read(error, "reply_code"), read(error, "method_sig")
    if code == 403 and call(method, "__getitem__", 0) in (0, 10):
        return Meaning(TRANSIENT, "AMQP 403, the login was refused, which is not the message's fault")
    return status_codes.amqp(code) if isinstance(code, int) else None


def _confluent_kafka(error: BaseException) -> Meaning | None:
    code = call(next(iter(error.args), None), "code")
    return status_codes.kafka(code) if isinstance(code, int) else None


def _aiokafka(error: BaseException) -> Meaning | None:
    code = read(error, "errno")
    if isinstance(code, int) and (meaning := status_codes.kafka(code)):
        return meaning
    return Meaning(TRANSIENT, "the client says that it can be tried again") if read(error, "retriable") is True else None


def _jetstream(error: BaseException) -> Meaning | None:
    code, detail = read(error, "code"), read(error, "err_code")
    return status_codes.jetstream(code, detail if isinstance(detail, int) else None) if isinstance(code, int) else None


def _smtp(error: BaseException) -> Meaning | None:
    code = read(error, "smtp_code")
    return status_codes.smtp([code]) if isinstance(code, int) else None


def _smtp_recipients(error: BaseException) -> Meaning | None:
    """One answer (code, text) per refused recipient."""
    answers = call(read(error, "recipients"), "values")
    codes = [call(answer, "__getitem__", 0) for answer in answers or ()]
    return status_codes.smtp([code for code in codes if isinstance(code, int)])


def _operating_system(error: BaseException) -> Meaning | None:
    """Only for OSError itself: subclasses such as ssl.SSLError and socket.gaierror keep other numbers in `errno`."""
    number = read(error, "errno")
    return status_codes.operating_system(number) if type(error) is OSError and isinstance(number, int) else None


def _publish_failed(error: BaseException) -> Meaning | None:
    """A batch in which only the messages are at fault fails the same way again; in all other cases the class decides."""
    if read(error, "is_about_the_messages") is True:
        return Meaning(PERMANENT, "the broker refuses these messages for what they are")
    return None


ANSWERS: Mapping[str, Callable[[BaseException], Meaning | None]] = {
    "requests.exceptions.RequestException": _requests_or_httpx,
    "httpx.HTTPStatusError": _requests_or_httpx,
    "aiohttp.client_exceptions.ClientResponseError": _aiohttp,
    "urllib.error.HTTPError": _urllib,
    "botocore.exceptions.ClientError": _botocore,
    "psycopg.Error": _postgres,
    "psycopg2.Error": _postgres,
    "pymysql.err.MySQLError": _mysql,
    "MySQLdb._exceptions.MySQLError": _mysql,
    "asyncmy.errors.MySQLError": _mysql,
    "mysql.connector.errors.Error": _mysql,
    "pika.exceptions.ChannelClosed": _pika_channel,
    "amqp.exceptions.AMQPError": _amqp,
    "cimpl.KafkaException": _confluent_kafka,
    "aiokafka.errors.KafkaError": _aiokafka,
    "nats.js.errors.APIError": _jetstream,
    "asyncpg.exceptions.InvalidCachedStatementError": _asyncpg_cached_plan,
    "asyncpg.exceptions._base.PostgresMessage": _postgres,
    "sqlalchemy.dialects.postgresql.asyncpg.AsyncAdapt_asyncpg_dbapi.Error": _postgres,
    "sqlalchemy.exc.DBAPIError": _sqlalchemy,
    "sqlite3.Error": _sqlite,
    "pymongo.errors.PyMongoError": _mongo,
    "redis.exceptions.ResponseError": _redis,
    "grpc.RpcError": _grpc,
    "smtplib.SMTPResponseException": _smtp,
    "smtplib.SMTPRecipientsRefused": _smtp_recipients,
    "builtins.OSError": _operating_system,
    "unpoison.errors.PublishFailed": _publish_failed,
}
"""Who can read the answer that exceptions of this class bring."""
