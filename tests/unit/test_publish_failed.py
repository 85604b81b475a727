"""What a sender learns when not everything is stored."""

import pickle
import sqlite3
from typing import Any

import pytest
from psycopg import errors

from unpoison.brokers.postgresql import errors as on_postgresql
from unpoison.brokers.sqlite import errors as on_sqlite
from unpoison.classify.classifier import classify
from unpoison.errors import BrokerUnavailable, ConfigError, PayloadError, PublishedMessage, PublishFailed, Refusal
from unpoison.flow.sending import check, published
from unpoison.model.message import Outgoing
from unpoison.model.verdict import ErrorClassification
from unpoison.port.broker import Published, Refused, not_sent

MESSAGES = [Outgoing(f"id-{number}", "orders", b"x") for number in range(6)]
LARGE = Refused(Refusal.TOO_LARGE, "It has 9 bytes too many.")


def failed(outcome: Published, messages=MESSAGES) -> Any:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is looked at
        check(messages, outcome)
    return caught.value


def test_each_message_is_in_one_of_the_three_lists():
    error = failed(Published({1: LARGE}, {3: "no answer in 30 s", 4: "no answer in 30 s"}))
    assert isinstance(error, PublishFailed)
    assert [(each.position, each.id) for each in error.stored] == [(0, "id-0"), (2, "id-2"), (5, "id-5")]
    assert error.refused == (PublishedMessage(1, "id-1", "It has 9 bytes too many.", Refusal.TOO_LARGE),)
    assert [each.position for each in error.unknown] == [3, 4]
    assert str(error) == (
        "Of 6 messages for 'orders': 3 stored, 1 refused, 2 unknown. Refused, certainly not stored: It has 9 bytes too many. "
        "Unknown, perhaps stored: no answer in 30 s. "
        "To be certain, send again under the same id; consumers may then get it twice."
    )


def test_reasons_are_told_once_with_their_positions():
    full = Refused(Refusal.NO_ROOM, "The queue is full.")
    error = failed(Published({0: full, 1: full, 2: full, 4: LARGE, 5: full}))
    assert "The queue is full. (at 0-2, 5) It has 9 bytes too many. (at 4)" in str(error)


def test_nothing_stored_is_said_in_one_sentence():
    error = failed(Published(dict.fromkeys(range(6), Refused(Refusal.NO_ROOM, "The disk is full."))))
    assert str(error) == "None of 6 messages for 'orders' is stored. The disk is full."


def test_one_message_without_an_answer_is_said_to_be_unknown():
    error = failed(Published(unknown={0: "no answer"}), MESSAGES[:1])
    assert isinstance(error, PublishFailed)
    assert str(error).startswith("It is unknown whether message 'id-0' for 'orders' is stored. no answer.")


def test_one_message_that_the_broker_never_takes_is_a_payload_error():
    assert isinstance(failed(Published({0: LARGE}), MESSAGES[:1]), PayloadError)
    assert isinstance(failed(Published({0: Refused(Refusal.NO_ROOM, "full")}), MESSAGES[:1]), PublishFailed)


def test_a_source_that_cannot_be_is_still_a_config_error():
    wrong = ConfigError("no such source")
    assert failed(Published(dict.fromkeys(range(6), not_sent(wrong)))) is wrong
    assert isinstance(failed(Published({0: not_sent(wrong)})), PublishFailed)


def test_a_broker_that_is_not_there_has_stored_nothing_for_certain():
    def connect():
        raise BrokerUnavailable("Nobody listens there.")

    error = failed(published(connect, MESSAGES, ""))
    assert {each.refusal for each in error.refused} == {Refusal.NOT_SENT}
    assert str(error) == "None of 6 messages for 'orders' is stored. Nobody listens there."
    assert isinstance(error.__cause__, BrokerUnavailable)


def test_it_can_be_pickled():
    error = failed(Published({1: LARGE}, {3: "no answer"}))
    again = pickle.loads(pickle.dumps(error))
    assert (again.stored, again.refused, again.unknown, str(again)) == (error.stored, error.refused, error.unknown, str(error))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Published({1: LARGE}), "permanent"),
        (Published({0: Refused(Refusal.NOT_SENT, "kept back"), 1: LARGE}), "permanent"),
        (Published({1: LARGE}, {2: "no answer"}), "transient"),
        (Published({1: Refused(Refusal.NO_ROOM, "full")}), "transient"),
        (Published(dict.fromkeys(range(6), Refused(Refusal.NOT_SENT, "away"))), "transient"),
    ],
)
def test_in_a_handler_it_is_retried_unless_the_messages_are_at_fault(outcome, expected):
    assert classify(failed(outcome)).classification is ErrorClassification(expected)


def sqlite_error(code: int) -> BrokerUnavailable:
    error, cause = BrokerUnavailable("SQLite said no."), sqlite3.OperationalError("no")
    cause.sqlite_errorcode, error.__cause__ = code, cause
    return error


@pytest.mark.parametrize(
    ("code", "committing", "refusal"),
    [
        (sqlite3.SQLITE_FULL, True, Refusal.NO_ROOM),
        (sqlite3.SQLITE_BUSY, True, Refusal.NOT_SENT),
        (sqlite3.SQLITE_IOERR, False, Refusal.OTHER),
        (sqlite3.SQLITE_IOERR_FSYNC, True, None),
        (sqlite3.SQLITE_IOERR, True, None),
        (sqlite3.SQLITE_READONLY_DBMOVED, False, Refusal.NOT_PERMITTED),
    ],
)
def test_sqlite_knows_nothing_for_certain_only_if_a_commit_has_failed(code, committing, refusal):
    outcome = on_sqlite.failed(MESSAGES, sqlite_error(code), 1_000, committing=committing)
    assert len(outcome.refused) == (6 if refusal else 0)
    assert len(outcome.unknown) == (0 if refusal else 6)
    assert {each.refusal for each in outcome.refused.values()} == ({refusal} if refusal else set())


@pytest.mark.parametrize(
    ("kind", "committing", "refusal"),
    [
        (errors.OperationalError, True, None),
        (errors.AdminShutdown, True, None),
        (errors.OperationalError, False, Refusal.NOT_SENT),
        (errors.DiskFull, True, Refusal.NO_ROOM),
        (errors.CheckViolation, False, Refusal.UNFIT),
        (errors.InsufficientPrivilege, False, Refusal.NOT_PERMITTED),
    ],
)
def test_postgresql_knows_nothing_for_certain_only_if_a_commit_got_no_answer(kind, committing, refusal):
    error = BrokerUnavailable("PostgreSQL said no.")
    error.__cause__ = kind("no")
    outcome = on_postgresql.failed(MESSAGES, error, committing=committing)
    assert len(outcome.unknown) == (0 if refusal else 6)
    assert {each.refusal for each in outcome.refused.values()} == ({refusal} if refusal else set())
