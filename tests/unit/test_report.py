import logging

import pytest

from unpoison.control.changes import OperatorPause, Paused, Resumed
from unpoison.control.evidence import Evidence
from unpoison.errors import BrokerUnavailable
from unpoison.flow.settling import SettlementBuilder
from unpoison.model.backoff import Limits
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.model.wording import in_words
from unpoison.reporting.observer import Observer
from unpoison.reporting.report import Report
from unpoison.workers.interface import Ended


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.00181, "0.01 s"), (0.0699, "0.07 s"), (0.1, "0.1 s"), (0.346, "0.35 s"), (1.54, "1.54 s"), (90, "90 s")],
)
def test_a_short_wait_is_said_without_digits_that_nobody_needs(seconds, said):
    assert in_words(seconds) == said


def test_a_pause_and_its_end_are_logged_in_plain_words(caplog):
    caplog.set_level(logging.INFO, "unpoison")
    report = Report()
    report.paused("orders", BrokerUnavailable("The server does not answer."))
    report.paused("orders", BrokerUnavailable("Still nothing."))
    report.resumed("orders")
    first, last = [record.getMessage() for record in caplog.records]
    assert first == "'orders' is paused; no message is lost. Retrying. The server does not answer."
    assert last == "'orders' resumed after 0.0 s."


def test_a_pause_whose_reason_changes_is_as_long_as_it_was_and_tells_its_present_reason(monkeypatch):
    clock, report = 100.0, Report()
    monkeypatch.setattr("time.monotonic", lambda: clock)
    report.controlled("orders", [Paused(Evidence("billing:443", 99.0, 10, ("refused",)))], clock)
    clock = 150.0
    report.controlled("orders", [Paused(OperatorPause("ana@desk", "migration", 1.0))], clock)
    clock = 160.0
    source, seconds, why = report.longest_pause()
    assert (source, seconds) == ("orders", 60.0)
    assert "by ana@desk" in why
    report.controlled("orders", [Resumed(60.0, OperatorPause("ana@desk", "migration", 1.0))], clock)
    assert report.longest_pause() is None


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"classification": "permanent", "text": "'id'", "type_name": "KeyError"},
            (
                "Message 'order-7' on 'orders' is a dead letter after attempt 1. KeyError: 'id' (permanent). "
                "Inspect: unpoison dlq show orders-1"
            ),
        ),
        (
            {"classification": "invalid", "text": "not JSON", "type_name": "unpoison.Unfit", "started": False, "charged": False},
            (
                "Message 'order-7' on 'orders' is a dead letter without a start. unpoison.Unfit: not JSON (invalid). "
                "Inspect: unpoison dlq show orders-1"
            ),
        ),
        (
            {"classification": "transient", "type_name": "ConnectionError", "max_attempts": 1},
            (
                "Message 'order-7' on 'orders' is a dead letter after attempt 1. ConnectionError (transient; attempt 1 of 1 "
                "failed, the limit set by the policy for this exception). Inspect: unpoison dlq show orders-1"
            ),
        ),
    ],
)
def test_a_dead_letter_is_logged_with_its_error_and_what_to_do(caplog, facts, line):
    facts["classification"] = ErrorClassification(facts["classification"])
    failed = Ended([Delivery(0, "orders", "order-7", b"")], {0: Failure(rule="r", **facts)})
    (event,) = SettlementBuilder(Limits(), "host", None)([failed]).events
    Report().failed(event, "orders-1")
    assert [record.getMessage() for record in caplog.records] == [line]


class Deaf(Observer):
    def done(self, source, count):
        raise OSError("the port is taken")


class Listening(Observer):
    def __init__(self):
        self.heard = []

    def done(self, source, count):
        self.heard.append(("done", source, count))

    def lost_broker(self, source, error):
        self.heard.append(("lost", source, str(error)))

    def found_broker(self, source):
        self.heard.append(("found", source))


def test_an_observer_that_fails_is_logged_once_and_keeps_no_news_from_the_others(caplog):
    listening = Listening()
    report = Report("", {"orders": "orders (shop:app)"}, [Deaf(), listening])
    for count in (0, 3, 4):
        report.done("orders", count)
    assert listening.heard == [("done", "orders (shop:app)", 3), ("done", "orders (shop:app)", 4)]
    (line,) = caplog.records
    assert line.getMessage().startswith("Deaf.done failed, so what it shows is incomplete; messages are not affected.")
    assert report.tallies()["orders (shop:app)"].done == 7


def test_observers_hear_of_each_try_to_reach_the_broker_and_of_its_end():
    listening = Listening()
    report = Report(observers=[listening])
    report.paused("orders", BrokerUnavailable("gone"))
    report.paused("orders", BrokerUnavailable("still gone"))
    report.resumed("orders")
    report.resumed("orders")
    assert listening.heard == [("lost", "orders", "gone"), ("lost", "orders", "still gone"), ("found", "orders")]
