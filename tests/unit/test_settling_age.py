"""How old is a message that had to wait? Only the time in which it might have started counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison.control.changes import OperatorPause
from unpoison.control.options import ControlOptions
from unpoison.control.source import SourceControl
from unpoison.flow.settling import SettlementBuilder, Waiting
from unpoison.model.backoff import Limits
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery, metadata_of
from unpoison.model.verdict import ErrorClassification

BEGIN, HOUR = 1e9, 3600.0
REFUSED = Failure(classification=ErrorClassification.TRANSIENT, rule="refused", type_name="ConnectionError")
PAUSE = OperatorPause("eva@web-1", "migration", 0.0)


class Waits:
    """A message that has failed at time 0, and what becomes of it."""

    def __init__(self):
        self.now = 0.0
        self.control = SourceControl(ControlOptions())
        self.build = SettlementBuilder(Limits(), "a:1", None, lambda: BEGIN + self.now, lambda: self.now, control=self.control)
        self.counters = Counters(attempts=1, first_failed_at=BEGIN)

    @property
    def delivery(self):
        return Delivery(None, "orders", "m", b"", counters=self.counters)

    def is_put_off(self, seconds):
        (kept,) = self.build([Waiting([self.delivery], seconds)]).settlement.kept
        self.counters = kept.counters
        self.now += seconds

    def pause(self, *, is_on):
        self.control.pause_by_operator(PAUSE if is_on else None, self.now)

    @property
    def age(self):
        metadata = self.build._aged(metadata_of(self.delivery, REFUSED), self.delivery, BEGIN + self.now)
        return BEGIN + self.now - metadata.first_failure_time.timestamp()


def test_waiting_in_a_paused_source_is_left_out_once():
    message = Waits()
    message.now = 20 * HOUR
    message.pause(is_on=True)
    for _ in range(12):
        message.is_put_off(600.0)
    message.pause(is_on=False)
    assert message.age == pytest.approx(20 * HOUR, abs=1)


def test_waiting_in_a_source_that_runs_is_left_out_too():
    message = Waits()
    message.now = 20 * HOUR
    message.is_put_off(600.0)
    assert message.age == pytest.approx(20 * HOUR, abs=1)


@given(st.lists(st.tuples(st.sampled_from(["runs", "waits", "is paused", "waits in a pause"]), st.floats(0, 600)), max_size=20))
def test_whatever_it_waits_for_its_age_is_the_rest(steps):
    message, rest = Waits(), 0.0
    for what, seconds in steps:
        match what:
            case "runs":
                message.now += seconds
                rest += seconds
            case "waits":
                message.is_put_off(seconds)
            case _:
                message.pause(is_on=True)
                if what == "is paused":
                    message.now += seconds
                else:
                    message.is_put_off(seconds)
                message.pause(is_on=False)
    assert message.age == pytest.approx(rest, abs=0.01)
