"""Which kind of failure is an exception that has a cause, holds others, or defends itself?"""

import asyncio

import pytest

from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, raised
from unpoison.classify.classifier import classify
from unpoison.errors import Discard, Permanent, RetryLater, Throttled
from unpoison.model.verdict import ErrorClassification


class ShipmentFailed(Exception):
    """A user's own exception that nothing is known about."""


def stand_in(full_name, **attributes):
    """An exception of a class with this full name."""
    module, _, name = full_name.rpartition(".")
    error = type(name, (Exception,), {"__module__": module})("text")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def busy(wait):
    """A server's HTTP 429 that asks for so many seconds."""
    return stand_in("aiohttp.client_exceptions.ClientResponseError", status=429, headers={"Retry-After": wait})


def caused(outer, cause):
    outer.__cause__ = cause
    return outer


def in_context(outer, context):
    outer.__context__ = context
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (caused(ShipmentFailed(), ConnectionError()), TRANSIENT),
        (caused(ShipmentFailed(), caused(RuntimeError(), KeyError())), PERMANENT),
        (caused(ValueError(), ConnectionError()), PERMANENT),
        (caused(ConnectionError(), ValueError()), TRANSIENT),
        (caused(MemoryError(), ConnectionError()), TRANSIENT),
        (caused(ShipmentFailed(), RuntimeError()), UNKNOWN),
        (in_context(ShipmentFailed(), ConnectionError()), UNKNOWN),
        (caused(ShipmentFailed(), in_context(RuntimeError(), KeyError())), UNKNOWN),
    ],
)
def test_the_outermost_recognised_exception_decides_and_context_never(error, expected):
    assert classify(error).classification is expected


def test_what_a_cause_asks_for_is_honoured_and_the_rule_names_both():
    found = classify(caused(ShipmentFailed(), busy("9")))
    assert (found.classification, found.retry_after, found.charged) == (THROTTLED, 9.0, False)
    assert "HTTP 429" in found.rule
    assert "ShipmentFailed" in found.rule


def test_a_steering_exception_behind_another_is_still_the_handler_s_word():
    assert classify(caused(ShipmentFailed(), Discard("a test order"))).discard
    assert classify(caused(ShipmentFailed(), RetryLater(4))).retry_after == 4.0


def test_causes_in_a_circle_or_without_end_are_unknown():
    one, two = ShipmentFailed(), ShipmentFailed()
    one.__cause__, two.__cause__ = two, one
    assert classify(one) == classify(ShipmentFailed())
    endless = ConnectionError()
    for _ in range(5_000):
        endless = caused(ShipmentFailed(), endless)
    assert classify(endless) == classify(ShipmentFailed())


def group(*members):
    return BaseExceptionGroup("several", list(members))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (group(ConnectionError()), TRANSIENT),
        (group(ConnectionError(), TimeoutError()), TRANSIENT),
        (group(ValueError(), KeyError()), PERMANENT),
        (group(ConnectionError(), ValueError()), UNKNOWN),
        (group(ConnectionError(), ShipmentFailed()), UNKNOWN),
        (group(group(KeyError()), group(group(ValueError()))), PERMANENT),
        (group(caused(ShipmentFailed(), TimeoutError()), ConnectionError()), TRANSIENT),
        (caused(group(ConnectionError(), ValueError()), AssertionError()), BUG),
        (caused(ShipmentFailed(), group(TimeoutError())), TRANSIENT),
        (group(SystemExit()), UNKNOWN),
    ],
)
def test_a_group_is_what_all_its_members_are(error, expected):
    assert classify(error).classification is expected


def test_a_group_waits_for_the_slowest_and_is_charged_if_any_member_is():
    found = classify(group(Throttled(3), busy("8"), Throttled()))
    assert (found.classification, found.retry_after, found.charged) == (THROTTLED, 8.0, False)
    assert classify(group(RetryLater(3), ConnectionError())).charged
    assert classify(group(Discard("a"), Discard("b"))).discard
    assert not classify(group(Discard("a"), ValueError())).discard


def test_a_task_group_s_failure_is_that_of_its_task():
    async def ship():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            tasks.create_task(asyncio.Event().wait())

    async def fail():
        raise ConnectionError

    assert classify(raised(asyncio.run, ship())).classification is TRANSIENT


def test_groups_nested_without_end_are_unknown():
    nested = group(ConnectionError())
    for _ in range(5_000):
        nested = group(nested)
    assert classify(nested).classification is UNKNOWN
    assert "its members do not agree" in classify(nested).rule


def explode(*_arguments):
    raise KeyboardInterrupt


HOSTILE = {
    "__str__": explode,
    "__repr__": explode,
    "__class__": property(explode),
    "__eq__": explode,
    "__hash__": None,
    "__bool__": explode,
    "__getattr__": explode,
    "response": property(explode),
    "status": property(explode),
    "code": property(explode),
    "errno": property(explode),
    "args": property(explode),
    "orig": property(explode),
    "sqlstate": property(explode),
    "details": property(explode),
}


@pytest.mark.parametrize(
    "base",
    [
        Exception,
        ValueError,
        OSError,
        Permanent,
        ExceptionGroup,
        *(
            type(stand_in(name))
            for name in (
                "requests.exceptions.RequestException",
                "botocore.exceptions.ClientError",
                "psycopg.Error",
                "sqlalchemy.exc.DBAPIError",
                "pymongo.errors.PyMongoError",
                "redis.exceptions.ResponseError",
                "grpc.RpcError",
                "sqlite3.Error",
            )
        ),
    ],
)
def test_an_exception_whose_every_attribute_raises_is_still_classified(base):
    arguments = ("several", [ValueError()]) if base is ExceptionGroup else ("x",)
    found = classify(type("Hostile", (base,), HOSTILE)(*arguments))
    assert isinstance(found.classification, ErrorClassification)
    assert found.rule


@pytest.mark.parametrize("value", [object(), [], {}, "503", 503.5, b"503", -1, 10**30, explode])
@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("aiohttp.client_exceptions.ClientResponseError", "status"),
        ("requests.exceptions.RequestException", "response"),
        ("botocore.exceptions.ClientError", "response"),
        ("psycopg.Error", "sqlstate"),
        ("sqlalchemy.exc.StatementError", "orig"),
        ("pymongo.errors.PyMongoError", "details"),
        ("grpc.RpcError", "code"),
        ("smtplib.SMTPResponseException", "smtp_code"),
        ("smtplib.SMTPRecipientsRefused", "recipients"),
        ("sqlite3.Error", "sqlite_errorcode"),
    ],
)
def test_rubbish_where_a_client_keeps_its_answer_is_no_answer(name, attribute, value):
    assert classify(stand_in(name, **{attribute: value})).classification in (UNKNOWN, TRANSIENT)


def test_rubbish_inside_an_aws_answer_is_no_answer():
    for response in (
        {"Error": 1},
        {"Error": {"Code": []}, "ResponseMetadata": {"HTTPStatusCode": "x"}},
        {"ResponseMetadata": None},
    ):
        assert classify(stand_in("botocore.exceptions.ClientError", response=response)).classification is UNKNOWN


def test_an_exception_without_a_readable_cause_is_unknown_and_says_so():
    hidden = type("Hidden", (Exception,), {"__cause__": property(explode)})
    found = classify(hidden())
    assert found.classification is UNKNOWN
    assert "KeyboardInterrupt" in found.rule
