"""What does the observer keep of what it hears, and does what it tells fit together? With real reports and a real server."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from tests.notified import PLACE, notice, webhooks
from tests.unit.stores import Clock
from unpoison import App
from unpoison.app_internals import runnable
from unpoison.control.changes import Expiring, OperatorPause, Paused
from unpoison.errors import BrokerUnavailable
from unpoison.flow.run import Run
from unpoison.flow.settling import SettlementBuilder
from unpoison.model.backoff import Limits
from unpoison.model.failure import Crash, Failure
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.notifying import notifier as notifying
from unpoison.notifying.claiming import Claims
from unpoison.notifying.commands import Commands
from unpoison.notifying.limits import MOST, MOST_OF_LETTERS, WINDOW
from unpoison.notifying.notifier import MOST_QUEUED, Notifier
from unpoison.notifying.targets import targets_of
from unpoison.notifying.watching import PAUSED_FOR
from unpoison.reporting.observer import Observer
from unpoison.reporting.report import Report
from unpoison.store.choice import database_for
from unpoison.store.notices import ToldNotices
from unpoison.testing.isolation.diary import wait_until
from unpoison.workers.interface import Ended

BODY = b"the body of a message " * 1_000


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(notifying, "LOOK", 0.01)
    monkeypatch.setattr(notifying, "GATHER", 0.01)


@pytest.fixture
def hooks():
    with webhooks() as server:
        yield server


def notifier(hooks, claims=None, clock=None):
    clocks = {} if clock is None else {"clock": clock}
    return Notifier(targets_of([hooks.url]), PLACE, Commands("shop:app"), claims or Claims(None), **clocks)


def named(number):
    """An exception for each number; digits would be taken out of its name."""
    return "shop." + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(number)) + "Error"


@pytest.fixture
def by_hand(monkeypatch):
    """Without the thread: the test takes the steps, and lets it begin for the end."""
    with monkeypatch.context() as changed:
        changed.setattr(Notifier, "_start", lambda self: None)

        def end(observer):
            changed.undo()
            observer._start()
            observer.close()

        yield end


def events(count=1, limit=1, **facts):
    known = {"classification": ErrorClassification.BUG, "rule": "bug", "type_name": "KeyError", "text": "piano"}
    deliveries = [Delivery(number, "orders", f"order-{number}", BODY) for number in range(count)]
    failures = {number: Failure(**{**known, **{name: each(number) for name, each in facts.items()}}) for number in range(count)}
    return SettlementBuilder(Limits(max_attempts=limit), "host", None)([Ended(deliveries, failures)]).events


def test_dead_letters_are_told_and_retries_and_successes_are_not(hooks):
    observer = notifier(hooks)
    report = Report("shop:app", observers=[observer])
    report.done("orders", 1_000)
    for event in events(3, limit=5, classification=lambda _: ErrorClassification.TRANSIENT):
        report.failed(event)
    assert observer._thread is None, "no news, no thread"
    for event in events(3):
        report.failed(event, f"orders-{event.delivery.id}")
    observer.close()
    (told,) = hooks.taken
    assert (told["kind"], told["counts"], told["letter_id"]) == ("new-group", {"dead": 3}, "orders-order-0")


def test_a_crash_that_is_retried_counts_as_a_death(hooks):
    observer = notifier(hooks)
    report = Report(observers=[observer])
    died = {"classification": lambda _: ErrorClassification.CRASH, "crash": lambda _: Crash(signal="SIGSEGV")}
    for event in events(5, limit=5, **died):
        report.failed(event)
    observer.close()
    assert hooks.kinds() == ["crash-loop"]


def test_a_letter_that_was_given_up_barely_is_told_with_the_group_that_it_has(hooks):
    observer = notifier(hooks)
    failure = Failure(classification=ErrorClassification.LOST, rule="lost", type_name="unpoison.Lost", text="")
    observer.given_up("orders", Delivery(0, "orders", "order-0", BODY), failure)
    observer.close()
    assert hooks.taken[0]["fingerprint"].startswith("2-")


def test_nothing_of_a_message_stays_in_memory(hooks, monkeypatch):
    monkeypatch.setattr(Notifier, "_start", lambda self: None)
    observer = notifier(hooks)
    for event in events(1, text=lambda _: "x" * 4_000, traceback=lambda _: "y" * 16_000):
        observer.failed("orders", event, "orders-1")
    ((_, (kept,), *_),) = observer._heard
    assert BODY not in kept
    assert sum(sys.getsizeof(each) for each in kept) < 2_000


def test_the_queue_is_bounded_while_nothing_reads_it(hooks, monkeypatch):
    monkeypatch.setattr(Notifier, "_start", lambda self: None)
    observer = notifier(hooks)
    for _ in range(MOST_QUEUED + 10):
        observer.lost_broker("orders", BrokerUnavailable("gone"))
    assert len(observer._heard) == MOST_QUEUED


def test_a_pause_is_told_after_a_minute_and_a_broker_that_comes_back_is_told(hooks):
    clock = Clock()
    observer = notifier(hooks, clock=clock)
    observer.controlled("orders", [Paused(OperatorPause("ada", "", 0.0)), Expiring(10, 20)], 0.0)
    observer.lost_broker("orders", BrokerUnavailable("amqp://u:hush@mq is gone"))
    wait_until(lambda: hooks.kinds() == ["retention"], lambda: f"{hooks.kinds()}")
    clock.now += PAUSED_FOR
    wait_until(lambda: len(hooks.taken) == 3, lambda: f"{hooks.kinds()}")
    observer.found_broker("orders")
    wait_until(lambda: len(hooks.taken) == 4, lambda: f"{hooks.kinds()}")
    observer.close()
    assert hooks.kinds()[1:] == ["paused", "paused", "resumed"]
    assert "hush" not in f"{hooks.taken}"


def test_ten_thousand_new_groups_are_a_handful_of_notices_also_with_a_store(hooks, tmp_path):
    told = ToldNotices(database_for(f"sqlite:///{tmp_path}/fleet.db", is_queue=True), "a:1")
    observer = notifier(hooks, Claims(told))
    flood = events(10_000, text=lambda n: f"in '{n}'", type_name=named)
    report = Report(observers=[observer])
    for event in flood:
        report.failed(event)
    observer.close()
    assert 1 <= len(hooks.taken) <= MOST_OF_LETTERS + 1
    assert set(hooks.kinds()) <= {"new-group", "growing", "summary"}
    assert hooks.of("new-group")[0]["counts"]["notices"] >= 1_000


def test_what_is_held_back_is_told_at_the_end(hooks, by_hand):
    clock = Clock()
    observer = notifier(hooks, clock=clock)
    for number in range(MOST_OF_LETTERS + 3):
        observer.step()
        for event in events(1, type_name=lambda _, number=number: named(number)):
            observer.failed("orders", event, None)
        clock.now += 20
    by_hand(observer)
    assert (hooks.kinds().count("new-group"), hooks.kinds().count("summary")) == (MOST_OF_LETTERS, 1)
    (summary,) = hooks.of("summary")
    assert summary["counts"]["notices"] == 3


def test_a_fault_in_making_a_notice_is_logged_once_and_the_next_one_is_told(hooks, caplog, monkeypatch):
    observer = notifier(hooks)
    due, broken = observer._watch.due, [RuntimeError("a"), RuntimeError("b")]

    def failing(now, **options):
        if broken:
            raise broken.pop()
        return due(now, **options)

    monkeypatch.setattr(observer._watch, "due", failing)
    observer.controlled("orders", [Expiring(10, 20)], 0.0)
    wait_until(lambda: hooks.taken, lambda: "nothing was told")
    observer.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_end_waits_for_a_server_that_is_silent_only_for_a_moment(hooks, caplog, monkeypatch):
    monkeypatch.setattr(notifying, "LAST", 0.3)
    freed = threading.Event()
    hooks.before = lambda: freed.wait(30)
    observer = notifier(hooks)
    for event in events(1):
        observer.failed("orders", event, None)
    observer.close()
    freed.set()
    assert "1 notice could not be sent within 0.3 s" in caplog.text


def test_a_fleet_tells_one_summary_in_ten_minutes(hooks, tmp_path, by_hand):
    clock = Clock(100 * WINDOW)

    def process(by):
        told = ToldNotices(database_for(f"sqlite:///{tmp_path}/fleet.db", is_queue=True), by)
        told._database.now = lambda run: clock()
        return notifier(hooks, Claims(told, clock=clock), clock)

    both = [process("a:1"), process("b:2")]
    for round_ in range(MOST + 3):
        for each, observer in enumerate(both):
            for event in events(1, type_name=lambda _, at=10 * round_ + each: named(at)):
                observer.failed("orders", event, None)
            clock.now += 6
            observer.step()
    clock.now += WINDOW
    for observer in both:
        observer.step()
    for observer in both:
        by_hand(observer)
    assert hooks.kinds().count("new-group") <= 2 * MOST_OF_LETTERS, "six in each ten minutes"
    assert hooks.kinds().count("summary") == 1


class Ending(Observer):
    def __init__(self):
        self.ends = 0

    def close(self):
        self.ends += 1
        raise OSError("the disk is full")


def test_observers_are_told_that_the_run_is_over_and_one_that_fails_costs_no_other_one(hooks, caplog):
    apps = [App("memory://", notify=[hooks.url]), App("memory://")]
    for number, app in enumerate(apps):

        @app.consumer(f"orders-{number}", isolation="inline", max_attempts=1)
        def fail(order: bytes):
            raise KeyError("piano")

        app.publish(f"orders-{number}", b"1")
    ending = Ending()
    run = Run([runnable(app) for app in apps], observers=[ending])
    run.serve(until_empty=True)
    assert (ending.ends, run.result().total.dead) == (2, 2), "once for each app"
    assert [(each["kind"], each["source"]) for each in hooks.taken] == [("new-group", "orders-0")]
    assert "Ending.close failed, so what it shows is incomplete; messages are not affected." in caplog.text


def test_an_app_that_notifies_nobody_loads_nothing_of_it():
    code = "import sys, unpoison.cli.run; print([name for name in sys.modules if 'notifying' in name or name == 'smtplib'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def sent_by_subject(folder):
    with closing(sqlite3.connect(folder / "fleet.db")) as file:
        return dict(file.execute("select subject, is_sent from unpoison_notices where subject like 'group|%'").fetchall())


def test_the_store_knows_what_was_sent_and_what_a_summary_tells(hooks, tmp_path):
    claims = Claims(ToldNotices(database_for(f"sqlite:///{tmp_path}/fleet.db", is_queue=True), "a:1"))
    claims.granted([])
    for _ in range(MOST_OF_LETTERS - 1):
        assert claims.has_room(notice())
    observer = notifier(hooks, claims)
    for number in range(2):
        for event in events(1, type_name=lambda _, number=number: named(number)):
            observer.failed("orders", event, None)
    observer.close()
    assert sorted(hooks.kinds()) == ["new-group", "summary"]
    assert list(sent_by_subject(tmp_path).values()) == [1, 1]


def test_a_store_that_hangs_does_not_hold_up_the_end(hooks, monkeypatch, caplog):
    monkeypatch.setattr(notifying, "LAST", 0.3)
    freed, claims = threading.Event(), Claims(None)
    monkeypatch.setattr(claims, "close", lambda: freed.wait(30))
    observer = notifier(hooks, claims)
    for event in events(1):
        observer.failed("orders", event, None)
    observer.close()
    assert not freed.is_set()
    assert "What was sent could not be noted in the store within 0.3 s" in caplog.text
    freed.set()
    observer._thread.join()
