"""What a consumer takes back from its workers counts as a start only when it starts; and what waits for too long is told."""

import time

from unpoison.control.changes import OperatorPause
from unpoison.control.options import ControlOptions
from unpoison.control.source import SourceControl
from unpoison.flow.gate import Gate
from unpoison.flow.retention import LOOK_EVERY
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery, Native
from unpoison.model.verdict import ErrorClassification
from unpoison.port.broker import Depth
from unpoison.reporting.report import Report

THROTTLED = Failure(
    classification=ErrorClassification.THROTTLED, rule="429", type_name="HTTPError", dependency="api:443", charged=False
)


class Held:
    """Workers that start nothing of what they are given."""

    def __init__(self):
        self.given = []

    def take_back(self):
        taken, self.given = self.given, []
        return taken


class Nobody:
    def release(self, unstarted, cut_off=()):
        pass


class Counting(SourceControl):
    """A control that counts what its budget is told of first starts."""

    def __init__(self):
        super().__init__(ControlOptions())
        self.firsts = 0
        tell, take = self._budget.first_starts, self._budget.not_started
        self._budget.first_starts = lambda count: (self.count(count), tell(count))
        self._budget.not_started = lambda count: (self.count(-count), take(count))

    def count(self, firsts):
        self.firsts += firsts


def messages(count, name="m"):
    return [Delivery(None, "orders", f"{name}{number}", b"") for number in range(count)]


def gate_of(control, workers):
    return Gate("orders", control, None, workers, Nobody(), Report(), monotonic=lambda: 100.0)


def slowed():
    """A gate, its control and its workers. A dependency has throttled three of twenty messages; the others have not started."""
    control, workers = Counting(), Held()
    gate = gate_of(control, workers)
    deliveries = messages(20)
    gate.started_first(deliveries)
    workers.given = deliveries[3:]
    for delivery in deliveries[:3]:
        control.weigh(delivery, THROTTLED, 100.0)
    gate.follow()
    return gate, control, workers


def test_messages_that_are_held_while_a_source_is_slowed_count_once():
    gate, control, _ = slowed()
    assert control.firsts == 3
    held = gate.take_held(100)
    assert len(held) == 17
    gate.started_first(held)
    assert control.firsts == 20


def test_messages_that_are_handed_back_do_not_count_until_they_come_again():
    control, workers = Counting(), Held()
    gate, deliveries = gate_of(control, workers), messages(20)
    gate.started_first(deliveries)
    gate.release(deliveries[10:])
    assert control.firsts == 10


def test_what_is_handed_back_is_no_part_of_the_rate_before_a_pause():
    _, control, _ = slowed()
    assert (control._throttle._starts.total(100.0), control._pace._starts.total(100.0)) == (3, 3)


class Keeps:
    """A broker that deletes messages two hours after their publish."""

    def deletes_after(self, source):
        return 7_200.0

    def depth(self, source):
        return Depth(1, 0, 0, 0)

    def native(self, delivery):
        return Native(properties={"timestamp": time.time() - 5_000.0})


def test_while_a_source_is_paused_its_consumer_tells_that_the_broker_will_delete_what_waits(caplog):
    control, past = Counting(), [0.0]
    gate = Gate("orders", control, Keeps(), Held(), Nobody(), Report(), monotonic=lambda: past[-1])
    control.pause_by_operator(OperatorPause("eva@web-1", "migration", 0.0), 0.0)
    for now in range(0, 7_200, 30):
        past.append(now)
        gate.follow()
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "retention"]
    assert (told.levelname, told.limit) == ("ERROR", 7_200.0)
    assert "have waited for 60 min, and the broker deletes them 2 h after their publish" in told.getMessage()


def test_a_queue_that_lags_behind_is_told_by_what_is_fetched(caplog):
    now = [0.0]
    gate = Gate("orders", Counting(), Keeps(), Held(), Nobody(), Report(), monotonic=lambda: now[0])
    gate.fetched(10, messages(3))
    now[0] += LOOK_EVERY
    gate.fetched(10, messages(3))
    gate.follow()
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "retention"]
    assert (told.waited, told.left) == (5_000, 2_200)
