"""Several messages at once in one worker: whose failure is it, and which of them have ended?"""

import os
import socket

import pytest

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.worker import wire
from unpoison.worker.concurrent_loop import Lanes
from unpoison.worker.health import Damage
from unpoison.worker.marks import Marks, create
from unpoison.workers.assignments import LaneAssignments

MOVED = Damage(["working directory"], ["working directory"], is_lasting=False)
FAILURE = Failure(classification=ErrorClassification.PERMANENT, rule="", type_name="ValueError")


@pytest.fixture
def marks():
    descriptor = create(3)
    marks = Marks(descriptor, 3)
    yield marks
    marks.close()
    os.close(descriptor)


class Checks:
    """What each check of the worker finds, in turn."""

    def __init__(self, *found):
        self._found = list(found)

    def check(self, habits, *, put_back=True):
        return self._found.pop(0)


@pytest.fixture
def worker(marks):
    """A worker whose checks find these, and what it says of failures: by lane, the damage it names."""

    class Worker(Lanes):
        def told(self):
            self._sock.shutdown(socket.SHUT_WR)
            said = []
            while (received := wire.receive(ours, wire.from_worker)) is not None:
                said.append(received[0])
            return {one.index: one.failure.worker_damage for one in said if isinstance(one, wire.Failed)}

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield lambda *found: Worker(theirs, marks, Checks(*found))


def test_a_message_that_ran_before_another_lane_put_the_worker_back_is_a_bystander(worker):
    lanes = worker(MOVED, None)
    lanes.begin(0)
    lanes.begin(1)
    lanes.end(0, 7, FAILURE)
    lanes.end(1, 7, FAILURE)
    assert lanes.told() == {0: "working directory", 1: "working directory"}


def test_a_message_that_began_after_that_answers_for_its_failure(worker):
    lanes = worker(MOVED, None)
    lanes.begin(0)
    lanes.end(0, 7, FAILURE)
    lanes.begin(1)
    lanes.end(1, 7, FAILURE)
    assert lanes.told() == {0: "working directory", 1: ""}


@pytest.fixture
def assignments(marks):
    """Of a worker that was given three messages, and what it was told."""
    told = []
    assignments = LaneAssignments(marks, lambda said: told.append(said) or wire.Sent.YES, shares_a_thread=False)
    assignments.give([Delivery(None, "orders", f"m{number}", b"") for number in range(3)])
    return assignments, told[0]


def test_what_never_began_has_not_ended_though_its_mark_says_so(assignments, marks):
    assignments, said = assignments
    for lane, code in zip(said.lanes, said.codes, strict=True):
        marks.end(lane, code)
    post_mortem = assignments.post_mortem()
    assert not post_mortem.ended.deliveries
    assert {one.delivery.id for one in post_mortem.running} == {"m0", "m1", "m2"}


def test_what_began_and_is_marked_has_ended(assignments, marks, worker):
    assignments, said = assignments
    lanes = worker(None)
    lanes.begin(1)
    lanes.end(1, said.codes[1], None)
    post_mortem = assignments.post_mortem()
    assert [delivery.id for delivery in post_mortem.ended.deliveries] == ["m1"]
    assert [delivery.id for delivery in post_mortem.unstarted] == ["m0", "m2"]
