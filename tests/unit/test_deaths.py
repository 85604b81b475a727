"""Who is charged when a worker dies? Each case of the rule, from what the dead worker left."""

import pytest

from unpoison.model.failure import Crash
from unpoison.model.message import Counters, Delivery
from unpoison.workers.assignments import PostMortem, Running
from unpoison.workers.deaths import TOGETHER, Death, judge_death, may_be_one_event
from unpoison.workers.interface import Ended

KILLED, SEGFAULT, EXITED = Crash(signal="SIGKILL"), Crash(signal="SIGSEGV"), Crash(exit_code=3)


def running(name, **counters):
    return Running(Delivery(name, "orders", name, b"", counters=Counters(**counters)), 1)


def death(*names, culprit=None, late=None, crash=KILLED, solo=False, sound=True, at=0.0, **counters):
    """A worker died in which these were running; the marks name the culprit."""
    there = {name: running(name, **counters) for name in names}
    post_mortem = PostMortem(Ended([]), list(there.values()), [], there.get(culprit), sound)
    return Death(at, post_mortem, crash, there.get(late), solo)


def judged(death, *, together=False):
    """(who is charged, with what), and who was a bystander: True for those that must run alone now."""
    charged, bystanders = [], {}
    for result in judge_death(death, together=together):
        if isinstance(result, Ended):
            assert not result.good()
            charged += [(result.deliveries[n].id, str(failure.classification)) for n, failure in result.failures.items()]
        else:
            bystanders |= {delivery.id: result.must_run_alone for delivery in result.deliveries}
    return charged, bystanders


@pytest.mark.parametrize(
    ("died", "together", "charged", "bystanders"),
    [
        (death("a", culprit="a"), False, [("a", "crash")], {}),
        (death("a", culprit="a", crash=EXITED), False, [("a", "crash")], {}),
        (death("a", "b", "c", culprit="b"), False, [("b", "crash")], {"a": False, "c": False}),
        (death("a", "b"), False, [], {"a": True, "b": True}),
        (death("a"), False, [], {"a": True}),
        (death("a", culprit="a"), True, [], {"a": True}),
        (death("a", "b", culprit="b"), True, [], {"a": True, "b": True}),
        (death("a", "b", culprit="b", late="a"), False, [("a", "timeout")], {"b": False}),
        (death("a", "b", culprit="b", sound=False), False, [], {"a": True, "b": True}),
        (death("a", solo=True), False, [("a", "crash")], {}),
        (death("a", solo=True, sound=False), False, [("a", "crash")], {}),
        (death("a", culprit="a", solo=True), True, [], {"a": True}),
        (death(), False, [], {}),
    ],
    ids=[
        "the one that was running",
        "whatever ended the worker",
        "the one whose step was running, the others were there",
        "several were running and nobody knows which",
        "it died between two steps",
        "several workers died at once",
        "several workers died at once, with several in each",
        "the one over its time limit, whoever was running",
        "marks that lie blame nobody",
        "the only one that ever ran in this worker",
        "the only one, and its marks lie",
        "the only one here, but other workers died at once",
        "nothing was running",
    ],
)
def test_the_guilty_one_is_charged_and_nobody_else(died, together, charged, bystanders):
    assert judged(died, together=together) == (charged, bystanders)


@pytest.mark.parametrize("solo", [False, True])
@pytest.mark.parametrize("other", [KILLED, SEGFAULT, EXITED])
def test_a_worker_killed_at_the_moment_of_another_death_may_be_its_victim(solo, other):
    victim = death("v", culprit="v", solo=solo)
    for moment in (-TOGETHER, 0.0, TOGETHER):
        assert may_be_one_event(victim, [victim, death("k", culprit="k", crash=other, at=moment)])
    assert not may_be_one_event(victim, [victim, death("k", culprit="k", at=TOGETHER * 1.01)])
    assert not may_be_one_event(victim, [victim])


@pytest.mark.parametrize("crash", [SEGFAULT, EXITED])
def test_a_worker_that_ended_by_its_own_fault_is_nobodys_victim(crash):
    assert not may_be_one_event(death("a", culprit="a", crash=crash), [death("k", culprit="k")])


def test_a_suspect_that_runs_alone_is_nobodys_victim():
    """There is nobody else. What died a moment ago was judged before it was started."""
    assert not may_be_one_event(death("a", culprit="a", alone=True), [death("k", culprit="k")])


def test_a_message_over_its_time_limit_is_nobodys_victim():
    assert not may_be_one_event(death("a", culprit="a", late="a"), [death("k", culprit="k")])


def test_a_worker_ended_by_mistake_charges_nobody():
    mistaken = Death(0.0, death("a", culprit="a").post_mortem, KILLED, None, was_solo=False, was_mistaken=True)
    assert judged(mistaken) == ([], {"a": False})
    assert not may_be_one_event(mistaken, [death("k", culprit="k")])
