"""An idle consumer is woken within milliseconds, also where and when the system does not help."""

import gc
import os
import resource
import threading
from pathlib import Path

import pytest

from tests.unit.sqlite_files import opened
from unpoison.brokers.sqlite import bell as bells
from unpoison.errors import BrokerUnavailable
from unpoison.testing import given
from unpoison.testing.processes import PATIENCE


@pytest.fixture
def file(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def rung():
    return threading.Event()


def test_without_inotify_a_message_is_noticed_all_the_same(file, rung, monkeypatch):
    monkeypatch.setattr(bells, "_watch", lambda path: None)
    _is_woken(file, rung)


def test_a_process_with_more_than_a_thousand_descriptors_is_woken_too(file, rung):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        _is_woken(file, rung)
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_bell_that_could_not_read_the_file_for_a_moment_rings_again_later(file, rung, monkeypatch):
    connect, failures = vars(bells)["connect"], [BrokerUnavailable("disk I/O error"), OSError("too many open files")]

    def failing(path):
        if failures:
            raise failures.pop()
        return connect(path)

    monkeypatch.setattr(bells, "connect", failing)
    monkeypatch.setattr(bells, "RECOVERY", 0.01)
    _is_woken(file, rung)
    assert failures == []


def test_a_commit_is_looked_for_closely_once_its_writing_was_heard(file, rung, monkeypatch):
    """The log is written to first. The commit counts when it is synced, and that makes no sound."""
    broker = opened(file, "orders")
    bell = bells.Bell(broker.path, [broker.numbers["orders"]], rung.set, lambda connection: False)
    heard, pauses = [False, False, True, False], []

    def sleep(pause):
        pauses.append(pause)
        if not heard:
            bell._closed.set()
        return bool(heard) and heard.pop()

    monkeypatch.setattr(bell, "_sleep", sleep)
    with broker.reading() as connection:
        bell._wait_for_change(connection, connection.execute("pragma data_version").fetchone()[0])
    closely = bells.LOOK_CLOSELY
    assert pauses == [bells.LOOK_EVERY, bells.LOOK_EVERY, closely, 2 * closely, 4 * closely]
    bell.close()
    broker.close()


def test_a_delay_that_is_over_rings_once_and_not_for_ever(file, rung):
    broker = opened(file, "orders")
    broker.publish(given.messages("orders", 1, delay=0.05))
    bell = bells.Bell(broker.path, [broker.numbers["orders"]], rung.set, lambda connection: False)
    with broker.reading() as connection:
        for _ in range(2):  # the first time it rings for what changed before, then for the delay
            assert bell._next_due(connection) is not None
            bell.arm()
            assert rung.wait(PATIENCE)
            rung.clear()
        assert bell._next_due(connection) is None, "what is left lying rings for ever"
    bell.close()
    broker.close()


def test_a_closed_bell_leaves_no_thread_and_no_descriptor(file, rung):
    opened(file, "orders").close()
    gc.collect()  # what earlier tests left must not be counted
    threads, descriptors = threading.active_count(), len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        opened(file, "orders", ring=rung.set).close()
    assert threading.active_count() <= threads
    assert len(list(Path("/dev/fd").iterdir())) <= descriptors


def _is_woken(file, rung):
    broker, publisher = opened(file, "orders", ring=rung.set), opened(file, "orders")
    for number in range(3):
        assert list(broker.fetch("orders", 10)) == []
        publisher.publish(given.messages("orders", 1, first=number))
        assert len(given.fetched_when_rung(broker, "orders", rung)) == 1
    broker.close()
    publisher.close()
