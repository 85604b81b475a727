"""A run that ends once its sources are empty says what it still waits for, and does not flood the log with it."""

import logging

import pytest

from unpoison.errors import BrokerUnavailable
from unpoison.flow.ending import UntilEmpty
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Capability, Depth, Kept, Settlement, Waits
from unpoison.reporting.report import Report

START = 1_700_000_000.0


class Source:
    """A broker that counts, and by default knows nothing else."""

    capabilities = Capability.EXACT_DEPTH

    def __init__(self, depth):
        self.found = depth

    def depth(self, source):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Explaining(Source):
    """One that knows when and who."""

    def __init__(self, depth, due=None, holders=()):
        super().__init__(depth)
        self.told = Waits(due, holders)

    def waits(self, source):
        return self.told


class Stage:
    """A consumer that looks whether its source is empty, by a clock of its own."""

    def __init__(self, broker, caplog):
        caplog.set_level(logging.INFO)
        self.now, self.broker, self._caplog = START, broker, caplog
        self.waiting = UntilEmpty("orders", broker, Report(), lambda: self.now)

    def look(self, after=0.0, running=0):
        """Returns the lines that were said meanwhile."""
        self._caplog.clear()
        self.now += after
        self.is_empty = self.waiting.is_empty(running)
        return [record.getMessage() for record in self._caplog.records]

    def fields(self):
        return self._caplog.records[-1]


def test_an_empty_source_is_empty_and_nothing_is_said(caplog):
    stage = Stage(Source(Depth(dead=3)), caplog)
    assert stage.look() == []
    assert stage.is_empty


def test_what_is_over_within_a_second_is_not_worth_a_line(caplog):
    stage = Stage(Source(Depth(delayed=1)), caplog)
    assert stage.look() == stage.look(after=0.9) == []
    stage.waiting.goes_on()
    assert stage.look(after=0.2) == stage.look(after=0.9) == []
    assert not stage.is_empty


@pytest.mark.parametrize(
    ("broker", "running", "said"),
    [
        (
            Explaining(Depth(delayed=3), due=START + 91),
            0,
            "3 messages are delayed, the next one until 2023-11-14 22:14:51 UTC, 90 s from now",
        ),
        (Explaining(Depth(delayed=1)), 0, "1 message is delayed"),
        (Explaining(Depth(leased=2), holders=("web-1:47", "web-2:11")), 0, "2 messages are held by web-1:47, web-2:11"),
        (Source(Depth(leased=1)), 0, "1 message is held by another consumer"),
        (Source(Depth(ready=1_000, leased=1)), 0, "1,000 messages wait to be started; 1 message is held by another consumer"),
        (Source(Depth()), 1, "1 message runs here"),
    ],
)
def test_it_says_what_it_waits_for(caplog, broker, running, said):
    stage = Stage(broker, caplog)
    stage.look(running=running)
    assert stage.look(after=1, running=running) == [f"Source 'orders' is not empty yet: {said}."]


def test_a_broker_that_only_estimates_is_not_quoted_with_numbers(caplog):
    broker = Source(Depth(delayed=3, leased=1))
    broker.capabilities = Capability.DURABLE
    stage = Stage(broker, caplog)
    stage.look()
    assert stage.look(after=1) == [
        "Source 'orders' is not empty yet: messages are delayed; messages are held by another consumer."
    ]


def test_json_lines_have_the_numbers_and_names_as_fields(caplog):
    stage = Stage(Explaining(Depth(delayed=3, leased=2), due=START + 61, holders=("web-1:47",)), caplog)
    stage.look()
    stage.look(after=1)
    fields = stage.fields()
    assert (fields.event, fields.source, fields.running, fields.ready) == ("waiting", "orders", 0, 0)
    assert (fields.delayed, fields.held, fields.holders) == (3, 2, ["web-1:47"])
    assert fields.due == "2023-11-14T22:14:21+00:00"


def test_the_same_is_said_once_a_minute_and_something_else_at_once(caplog):
    stage = Stage(Explaining(Depth(leased=2), holders=("web-1:47",)), caplog)
    stage.look()
    assert len(stage.look(after=1)) == 1
    assert [stage.look(after=1) for _ in range(58)] == [[]] * 58
    stage.broker.found = Depth(leased=1)
    assert stage.look(after=1) == [], "one message fewer is nothing new"
    assert len(stage.look(after=1)) == 1, "a minute is over"
    stage.broker.told = Waits(None, ("web-2:11",))
    assert len(stage.look(after=1)) == 1, "somebody else holds it"
    stage.broker.found = Depth(delayed=1)
    assert len(stage.look(after=1)) == 1, "it is delayed now"


def test_where_the_broker_does_not_know_what_this_consumer_delayed_itself_is_told(caplog):
    stage = Stage(Source(Depth(delayed=2)), caplog)
    kept = [Kept(Delivery(1, "orders", "a", b""), Counters(), after) for after in (0.5, 31, 0, 400)]
    stage.waiting.settled(Settlement(kept=kept))
    stage.look()
    assert "the next one until 2023-11-14 22:13:51 UTC, 30 s from now" in stage.look(after=1)[0]


def test_a_broker_that_does_not_answer_makes_nothing_empty(caplog):
    stage = Stage(Source(BrokerUnavailable("gone")), caplog)
    (said,) = stage.look()
    assert "gone" in said
    assert not stage.is_empty
