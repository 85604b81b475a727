"""The metadata of a message: written as people write it, and complete when hooks get it."""

import dataclasses
import itertools
import math
import time
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from unpoison import App, Backoff, ConfigError, MessageMetadata, PoisonPillHandler, Policy

numbers = itertools.count()


def test_the_first_failure_may_be_given_as_time_tells_it():
    before = datetime.now(UTC)
    metadata = MessageMetadata("m", first_failure_time=time.time())
    assert before - timedelta(seconds=1) <= metadata.first_failure_time <= datetime.now(UTC) + timedelta(seconds=1)
    assert metadata.first_failure_time.tzinfo is UTC
    assert MessageMetadata("m", first_failure_time=0).first_failure_time == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("moment", [None, datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))])  # noqa: DTZ001
def test_a_datetime_stays_as_it_is(moment):
    assert MessageMetadata("m", first_failure_time=moment).first_failure_time == moment


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300, -1e300, 1_790_000_000_000, "now", True])
def test_what_is_no_moment_is_refused_with_what_to_do(wrong):
    with pytest.raises(ConfigError, match=r"first_failure_time must be a datetime or seconds since 1970.*1000"):
        MessageMetadata("m", first_failure_time=wrong)


def test_a_float_decides_like_the_datetime_it_stands_for():
    handler = PoisonPillHandler(max_age=60)
    assert handler.should_retry(MessageMetadata("m", first_failure_time=time.time() - 30), ConnectionError())
    assert not handler.should_retry(MessageMetadata("m", first_failure_time=time.time() - 90), ConnectionError())


def test_it_travels_between_processes_and_can_be_changed_in_copies():
    metadata = MessageMetadata("m", 2, 5, 1_790_000_000.25, "away")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(metadata), type=MessageMetadata) == metadata
    assert dataclasses.replace(metadata, attempt=3) == MessageMetadata("m", 3, 5, 1_790_000_000.25, "away")
    assert hash(metadata) == hash(dataclasses.replace(metadata))
    with pytest.raises(dataclasses.FrozenInstanceError):
        metadata.attempt = 3


def hooked(error, **options):
    """What hooks are told about a message that fails until it is given up."""
    app, told = App(f"memory://metadata-{next(numbers)}"), []
    handler = PoisonPillHandler(
        backoff=Backoff.immediate(),
        on_retry=lambda message, metadata, delay: told.append(metadata),
        on_dlq=lambda message, metadata, exc: told.append(metadata),
        **options,
    )

    @app.consumer("orders", handler=handler)
    def fail(body: bytes):
        raise error

    app.publish("orders", b"1")
    before = datetime.now(UTC)
    app.run(until_empty=True)
    app.close()
    assert all(before - timedelta(seconds=1) <= metadata.first_failure_time <= datetime.now(UTC) for metadata in told)
    assert len({metadata.first_failure_time for metadata in told}) == 1
    return told


def test_hooks_are_told_the_limit_and_the_first_failure():
    told = hooked(ConnectionError("away"), max_attempts=3)
    assert [(metadata.attempt, metadata.max_attempts) for metadata in told] == [(1, 3), (2, 3), (3, 3)]
    assert {metadata.last_error for metadata in told} == {"ConnectionError: away"}


def test_the_limit_is_that_of_the_policy_where_there_is_one():
    told = hooked(ConnectionError("away"), max_attempts=3, policies={OSError: Policy(max_attempts=2)})
    assert [(metadata.attempt, metadata.max_attempts) for metadata in told] == [(1, 2), (2, 2)]


def test_no_limit_is_told_as_none():
    assert [metadata.max_attempts for metadata in hooked(KeyError("x"), max_attempts=None)] == [None]
