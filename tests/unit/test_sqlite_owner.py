"""Ownership lasts as long as a process of the owner lives, and not a moment longer."""

import os
import signal
import sqlite3
from contextlib import closing

import pytest

from tests.unit.sqlite_files import opened, query
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters
from unpoison.port.broker import Depth, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate


@pytest.fixture
def file(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def look_at_once(monkeypatch):
    """Looks for vanished consumers are not spared."""
    monkeypatch.setattr("unpoison.brokers.sqlite.broker.TAKEOVER_EVERY", 0.0)


def locks(file):
    folder = file.with_name(f"{file.name}-owners")
    return sorted(lock.name for lock in folder.iterdir()) if folder.exists() else []


def test_a_connection_that_only_publishes_is_no_owner(file):
    broker = opened(file, "orders")
    broker.publish(given.messages("orders", 1))
    with closing(opened(file, "others")) as other:
        assert list(other.fetch("others", 10)) == []
        assert (locks(file), query(file, "select count(*) from unpoison_owners")) == ([], [(0,)])
    broker.close()


def test_the_lock_file_of_an_owner_goes_when_it_was_taken_over(file):
    first, second = opened(file, "orders"), opened(file, "orders")
    first.publish(given.messages("orders", 1))
    first.fetch("orders", 10)
    assert locks(file) == ["1"]
    first.close()
    (delivery,) = second.fetch("orders", 10)
    assert delivery.counters == Counters(vanished=1)
    assert locks(file) == ["2"]
    assert query(file, "select no from unpoison_owners") == [(2,)]
    second.close()


def test_an_owner_that_left_nothing_behind_is_cleared_away_too(file):
    first, second = opened(file, "orders"), opened(file, "orders")
    first.publish(given.messages("orders", 1))
    first.settle(Settlement(gone=first.fetch("orders", 10)))
    first.close()
    assert list(second.fetch("orders", 10)) == []
    assert (locks(file), query(file, "select count(*) from unpoison_owners")) == ([], [(0,)])
    second.close()


def test_a_child_process_that_is_still_running_keeps_its_owners_messages(file, look_at_once):
    holding, fetched, end = Gate("the grandchild lives"), Gate("fetched"), Gate("end")

    def consume() -> None:
        broker = opened(file, "orders")
        broker.fetch("orders", 10)
        if os.fork() == 0:
            holding.open()
            end.wait()
            os._exit(0)
        fetched.open()
        signal.pause()

    publisher, other = opened(file, "orders"), opened(file, "orders")
    publisher.publish(given.messages("orders", 2))
    with Child(consume) as child:
        holding.wait()
        fetched.wait()
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert list(other.fetch("orders", 10)) == []
        assert other.depth("orders") == Depth(leased=2)
        end.open()
        child.wait()  # returns once the grandchild ends as well: its files are closed one after the other, and so is the lock
    found = []
    wait_until(lambda: found.extend(other.fetch("orders", 10)) or len(found) == 2, lambda: f"only {found} came back")
    publisher.close()
    other.close()


def test_two_consumers_take_over_what_was_left_once(file, look_at_once):
    first = opened(file, "orders")
    first.publish(given.messages("orders", 10))
    first.fetch("orders", 10)
    first.close()
    second, third = opened(file, "orders"), opened(file, "orders")
    taken = [*second.fetch("orders", 4), *third.fetch("orders", 10), *second.fetch("orders", 10)]
    assert sorted(int(delivery.body) for delivery in taken) == list(range(10))
    assert all(delivery.counters == Counters(vanished=1) for delivery in taken)
    second.close()
    third.close()


def test_an_owner_whose_lock_file_was_deleted_loses_its_messages_and_nothing_else(file, look_at_once):
    broker, other = opened(file, "orders"), opened(file, "orders")
    broker.publish(given.messages("orders", 3))
    broker.fetch("orders", 2)
    file.with_name(f"{file.name}-owners").joinpath("1").unlink()
    assert {delivery.body for delivery in other.fetch("orders", 10)} == {b"0", b"1", b"2"}
    broker.close()
    other.close()


def test_a_registration_that_fails_leaves_nothing_behind(file):
    broker, other = opened(file, "orders"), opened(file, "orders")
    broker.publish(given.messages("orders", 2))
    broker._connection = NoSpaceOnce(broker._connection)
    with pytest.raises(BrokerUnavailable, match="disk is full"):
        broker.fetch("orders", 10)
    assert len(other.fetch("orders", 1)) == 1, "the number of the failed one is free again"
    deliveries = broker.fetch("orders", 10)
    assert len(deliveries) == 1
    broker.settle(Settlement(gone=deliveries))
    other.close()
    broker.close()


def test_lock_files_that_cannot_be_made_are_explained(file):
    broker = opened(file, "orders")
    broker.publish(given.messages("orders", 1))
    file.with_name(f"{file.name}-owners").write_text("in the way")
    with pytest.raises(BrokerUnavailable, match=r"lock files beside it cannot be used.*Nothing is lost"):
        broker.fetch("orders", 10)
    file.with_name(f"{file.name}-owners").unlink()
    assert len(broker.fetch("orders", 10)) == 1
    broker.close()


class NoSpaceOnce:
    """A connection whose first commit finds no space on the disk."""

    def __init__(self, connection):
        self._connection, self._failed = connection, False

    def execute(self, statement, *values):
        if statement == "commit" and not self._failed:
            self._failed = True
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(statement, *values)

    def __getattr__(self, name):
        return getattr(self._connection, name)
