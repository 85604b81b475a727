"""When does a consumer count as hung, and when as not ready?"""

import json
import threading

import pytest

from unpoison.control.admission import TooManyDead
from unpoison.control.changes import Opened, OperatorPause, Paused, Resumed
from unpoison.control.evidence import Evidence
from unpoison.errors import BrokerUnavailable
from unpoison.observing.health import HUNG_AFTER, Health, Phase, SourceHealth

NEVER = float("-inf")
DEAD = TooManyDead(since=0.0, dead=48, ended=52, within=30.0, samples=("KeyError: 'ada@example.org'",))
OUTAGE = Evidence("billing.example.com:443", since=0.0, messages=10, samples=("ConnectError: ada@example.org",))
PERSON = OperatorPause("grace@laptop", "the bank is closed", 0.0)


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class Scene:
    """The consumer of 'orders', whose clock the test holds."""

    def __init__(self, phase=Phase.RUNNING, imported_at=lambda: NEVER, **limits):
        self.clock, self.is_draining = Clock(), False
        self.source = SourceHealth("orders", imported_at=imported_at, monotonic=self.clock, **limits)
        self.health = Health([self.source], lambda: self.is_draining, clock=lambda: 1_800_000_000 + self.clock.now)
        self.source.enters(phase)

    def is_hung_after(self, seconds):
        self.clock.now = self.source.last_turn.at + seconds
        is_fine, text = self.health.healthz()
        assert (json.loads(text)["sources"][0]["state"] == "hung") is not is_fine
        return not is_fine

    def ready(self):
        is_ready, text = self.health.readyz()
        (told,) = json.loads(text)["sources"]
        assert told["ready"] is is_ready
        return is_ready, told["state"], told.get("reason", "")


def test_a_loop_that_has_not_turned_for_longer_than_it_may_wait_is_hung():
    scene = Scene()
    assert not scene.is_hung_after(HUNG_AFTER - 1)
    assert scene.is_hung_after(HUNG_AFTER + 1)
    assert not scene.ready()[0]
    scene.source.last_turn.note()
    assert not scene.is_hung_after(0)
    assert scene.ready() == (True, "running", "")


def test_what_is_hung_is_told_with_its_source_and_since_when():
    scene = Scene()
    scene.clock.now += 3_600
    told = json.loads(scene.health.healthz()[1])
    assert told["status"] == "hung"
    assert told["sources"][0]["source"] == "orders"
    assert told["sources"][0]["since"] == "2027-01-15T08:16:40+00:00"
    assert "has not turned for 60 min" in told["sources"][0]["reason"]


def test_one_hung_consumer_of_several_is_enough():
    scene = Scene()
    other = SourceHealth("emails", monotonic=scene.clock)
    other.enters(Phase.RUNNING)
    health = Health([scene.source, other])
    scene.clock.now += HUNG_AFTER + 1
    other.last_turn.note()
    is_fine, text = health.healthz()
    assert not is_fine
    assert [each["state"] for each in json.loads(text)["sources"]] == ["hung", "running"]


def test_a_handler_that_runs_in_the_loop_may_take_its_time():
    scene = Scene(turn_limit=300.0)
    assert not scene.is_hung_after(HUNG_AFTER + 299)
    assert scene.is_hung_after(HUNG_AFTER + 301)
    assert not Scene(turn_limit=float("inf")).is_hung_after(1e9)


def test_workers_may_take_their_time_to_start():
    scene = Scene(Phase.STARTING, start_limit=60.0)
    assert not scene.is_hung_after(HUNG_AFTER + 59)
    assert scene.is_hung_after(HUNG_AFTER + 61)
    scene.source.enters(Phase.RUNNING)
    assert scene.is_hung_after(HUNG_AFTER + 1)


def test_time_in_which_the_app_is_imported_again_does_not_count():
    imported = [NEVER]
    scene = Scene(imported_at=lambda: imported[0])
    imported[0] = scene.clock.now + 1_000
    assert not scene.is_hung_after(1_000 + HUNG_AFTER - 1)
    assert scene.is_hung_after(1_000 + HUNG_AFTER + 1)


def test_a_consumer_that_has_ended_does_not_hang():
    assert not Scene(Phase.ENDED).is_hung_after(1e9)


def test_a_consumer_is_ready_once_its_broker_is_open_and_its_workers_have_started():
    scene = Scene(Phase.OPENING)
    assert scene.ready() == (False, "starting", "Its broker is being asked.")
    assert not scene.health.have_started()
    scene.source.enters(Phase.STARTING)
    assert scene.ready() == (False, "starting", "Its workers are starting.")
    scene.source.problem = lambda: "No worker can start: on_worker_start raised KeyError"
    scene.source.enters(Phase.RUNNING)
    assert scene.ready() == (False, "no workers", "No worker can start: on_worker_start raised KeyError")
    assert not scene.health.have_started()
    scene.source.problem = str
    assert scene.ready() == (True, "running", "")
    assert scene.health.have_started()
    scene.source.problem = lambda: "The template has ended."
    assert not scene.ready()[0]
    assert scene.health.have_started()


def test_a_consumer_without_its_broker_is_not_ready_and_not_hung():
    scene = Scene()
    scene.health.lost_broker("orders", BrokerUnavailable("Cannot reach amqp://shop:secret@mq.example.com/."))
    scene.clock.now += 60
    scene.health.lost_broker("orders", BrokerUnavailable("Cannot reach amqp://shop:secret@mq.example.com/. Refused."))
    is_ready, state, reason = scene.ready()
    assert (is_ready, state) == (False, "no broker")
    assert "mq.example.com/. Refused." in reason
    assert "secret" not in reason
    assert json.loads(scene.health.readyz()[1])["sources"][0]["since"] == "2027-01-15T08:16:40+00:00"
    assert scene.health.healthz()[0]
    scene.health.found_broker("orders")
    assert scene.ready() == (True, "running", "")


@pytest.mark.parametrize(
    ("reason", "is_ready", "says"),
    [
        (DEAD, False, "of 52 messages that ended within 30 s, 48 were to become dead letters"),
        (OUTAGE, True, "billing.example.com:443 is down"),
        (PERSON, True, "It is paused by grace@laptop"),
    ],
    ids=["a bad deploy", "an outage", "a person"],
)
def test_only_a_pause_that_a_deploy_may_have_caused_makes_it_unready(reason, is_ready, says):
    scene = Scene()
    scene.health.controlled("orders", [Opened(OUTAGE), Paused(reason)], 0.0)
    told = scene.ready()
    assert told[:2] == (is_ready, "paused")
    assert says in told[2]
    assert "ada@example.org" not in told[2]  # a person's address in a message is no business of a probe
    assert scene.health.healthz()[0]
    scene.health.controlled("orders", [Resumed(1.0, reason)], 0.0)
    assert scene.ready() == (True, "running", "")


def test_one_that_is_being_stopped_is_not_ready_and_not_hung():
    scene = Scene()
    scene.is_draining = True
    assert scene.ready()[:2] == (False, "draining")
    assert scene.health.healthz()[0]
    scene.source.enters(Phase.ENDED)
    assert scene.ready()[:2] == (False, "ended")


def test_the_stack_of_a_consumer_is_that_of_its_thread():
    scene, began, gate = Scene(), threading.Event(), threading.Event()

    def stuck_in_a_client():
        scene.source.enters(Phase.RUNNING)
        began.set()
        gate.wait()

    thread = threading.Thread(target=stuck_in_a_client)
    thread.start()
    began.wait()
    assert "stuck_in_a_client" in scene.source.stack()
    gate.set()
    thread.join()
    assert scene.source.stack() == ""
