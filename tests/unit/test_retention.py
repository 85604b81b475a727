"""A consumer tells once, and in time, that the broker will delete what waits."""

import pytest

from unpoison.control.changes import Expiring, OperatorPause
from unpoison.control.options import ControlOptions
from unpoison.control.source import SourceControl
from unpoison.errors import BrokerUnavailable
from unpoison.flow.retention import ASK_EVERY, LOOK_EVERY, Retention
from unpoison.model.message import Counters, Delivery, Native
from unpoison.port.broker import Depth

HOUR = 3_600.0
BEGIN = 1_800_000_000.0
PAUSE = OperatorPause("eva@web-1", "migration", BEGIN)


class Keeps:
    """A broker that deletes messages after four hours; how old those are that it hands out is their receipt."""

    def __init__(self, limit=4 * HOUR, ready=3):
        self.limit, self.ready, self.questions, self.now = limit, ready, 0, 0.0

    def deletes_after(self, source):
        self.questions += 1
        if isinstance(self.limit, Exception):
            raise self.limit
        return self.limit

    def depth(self, source):
        return Depth(self.ready, 0, 0, 0)

    def native(self, delivery):
        return Native(properties={} if delivery.receipt is None else {"timestamp": BEGIN + self.now - delivery.receipt})


class Scene:
    def __init__(self, **broker):
        self.broker, self.control, self.now = Keeps(**broker), SourceControl(ControlOptions()), 0.0
        self.retention = Retention("orders", self.broker, lambda: BEGIN + self.now)

    def turns(self, seconds, age=None, **counters):
        """The turns of a consumer; with an age it fetches messages of that age. Returns what was told."""
        until, told = self.now + seconds, list[Expiring]()
        while self.now < until:
            if age is not None:
                known = {"counters": Counters(**counters)} if counters else {}
                self.broker.now = self.now
                self.retention.fetched([Delivery(age, "orders", "m", b"", **known)], self.now)
            expiring = self.retention.look(self.control.paused_so_far(self.now), self.now)
            told += [] if expiring is None else [expiring]
            self.now += 5.0
        return told

    def pause(self, *, is_on=True):
        self.control.pause_by_operator(PAUSE if is_on else None, self.now)


def test_a_source_that_is_paused_for_half_of_the_time_is_told_once():
    scene = Scene()
    scene.pause()
    assert scene.turns(1.9 * HOUR) == []
    (told,) = scene.turns(3 * HOUR)
    assert told.limit == 4 * HOUR
    assert 2 * HOUR <= told.waited <= 2 * HOUR + LOOK_EVERY
    assert scene.retention.used == 1.0
    assert scene.broker.questions <= 5 * HOUR / ASK_EVERY + 1


def test_it_is_told_again_in_the_next_long_pause():
    scene = Scene()
    for _ in range(2):
        scene.pause()
        assert len(scene.turns(3 * HOUR)) == 1
        scene.pause(is_on=False)
        assert scene.turns(HOUR) == []


def test_a_queue_that_lags_behind_is_told_too_though_it_is_never_paused():
    scene = Scene()
    assert scene.turns(HOUR, age=1.9 * HOUR) == []
    (told,) = scene.turns(HOUR, age=2.5 * HOUR)
    assert told.waited == pytest.approx(2.5 * HOUR)
    assert scene.turns(HOUR, age=1.5 * HOUR) == []
    assert scene.turns(HOUR, age=2.5 * HOUR) == [], "it is still the same lag"
    assert scene.retention.used == pytest.approx(2.5 / 4)
    assert scene.turns(HOUR, age=0.5 * HOUR) == [], "it has caught up"
    assert scene.retention.used == pytest.approx(0.5 / 4)
    assert len(scene.turns(HOUR, age=2.5 * HOUR)) == 1


def test_a_short_run_looks_at_no_message():
    scene, looked = Scene(), []
    scene.broker.native = lambda delivery: looked.append(delivery) or Native()
    scene.turns(LOOK_EVERY, age=HOUR)
    assert looked == []
    scene.turns(LOOK_EVERY, age=HOUR)
    assert len(looked) == 1


def test_a_queue_that_is_handled_at_once_asks_nobody():
    scene = Scene()
    assert scene.turns(24 * HOUR, age=1.0) == []
    assert scene.retention.used is None
    assert scene.broker.questions == 0


def test_what_was_put_off_is_kept_under_a_time_of_its_own():
    assert Scene().turns(HOUR, age=3 * HOUR, attempts=1) == []


@pytest.mark.parametrize("age", [None, -HOUR, 1_000 * HOUR])
def test_times_that_cannot_be_and_none_at_all_tell_nothing(age):
    scene = Scene()
    assert scene.turns(HOUR, age=age) == []
    for _ in range(3):
        scene.retention.fetched([Delivery(None, "orders", "m", b"")], scene.now)
        scene.now += LOOK_EVERY
    assert scene.turns(HOUR) == []


@pytest.mark.parametrize("broker", [{"limit": None}, {"ready": 0}, {"limit": BrokerUnavailable("It is away.")}])
def test_nothing_is_told_where_nothing_is_deleted_or_nothing_waits_or_nobody_knows(broker):
    scene = Scene(**broker)
    scene.pause()
    assert scene.turns(10 * HOUR) == []


def test_a_broker_that_keeps_all_for_ever_is_not_asked():
    retention = Retention("orders", object())
    retention.fetched([Delivery(None, "orders", "m", b"")], 0.0)
    assert retention.look(10 * HOUR, 0.0) is None


def test_more_than_all_of_the_time_is_told_as_well():
    scene = Scene()
    scene.control.pause_by_operator(PAUSE, 0.0, since=-10 * HOUR)
    (told,) = scene.turns(HOUR)
    assert told.waited >= 10 * HOUR
