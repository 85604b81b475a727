"""Whose doing is it when a worker that can say nothing more is ended? Not that of a message which began in that moment."""

import pytest

from unpoison.model.failure import Crash
from unpoison.model.message import Delivery
from unpoison.worker.wire import Sent
from unpoison.workers.assignments import PostMortem, Running
from unpoison.workers.deaths import Deaths, judge_death
from unpoison.workers.interface import Bystanders, Ended
from unpoison.workers.pooled_worker import PooledWorker

NEXT = Running(Delivery("next", "orders", "next", b""), 1)


class Process:
    """Alive until it is killed, with its line closed."""

    hung_up = True
    alive = True

    def is_gone(self, wait=0.0):
        return not self.alive

    def kill(self):
        self.alive = False

    def said(self):
        return ()

    def autopsy(self, elapsed, *, was_stuck=False):
        return Crash(signal="SIGKILL")


class Record:
    """Of a worker that begins its next message just before it is killed."""

    is_sound = True
    sent = Sent.YES

    def __init__(self, process, before):
        self.process, self.before = process, before

    def running(self):
        return self.before if self.process.alive else [NEXT]

    def held(self):
        return len(self.running())

    def give(self, deliveries):
        return self.sent

    def post_mortem(self):
        return PostMortem(Ended([]), self.running(), [], NEXT, self.is_sound)


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr("unpoison.workers.pooled_worker.assignments_for", lambda process, *_: Record(process, ()))
    return PooledWorker(Process(), consumer=None)


def test_a_message_that_begins_while_its_idle_worker_is_killed_is_not_charged(worker):
    assert worker.is_over()
    death = Deaths().note(worker, worker.post_mortem())
    assert judge_death(death, together=False) == [Bystanders([NEXT.delivery], must_run_alone=False)]


def test_a_dying_worker_that_overwrote_its_marks_is_not_taken_for_an_idle_one(worker):
    worker.assignments.is_sound = False
    death = Deaths().note(worker, worker.post_mortem())
    assert not death.was_mistaken


def test_a_worker_that_closed_its_line_is_not_over_while_a_message_runs_in_it(worker):
    worker.assignments.before = [NEXT]
    assert not worker.is_over()
    worker.process.alive = False
    assert worker.is_over()
    death = Deaths().note(worker, worker.post_mortem())
    (ended,) = judge_death(death, together=False)
    assert [str(failure.classification) for failure in ended.failures.values()] == ["crash"]


def test_a_worker_that_cannot_be_given_more_is_not_killed_while_a_message_runs_in_it(worker):
    """A handler has closed its worker's line, and the consumer hands out the next batch before it has noticed."""
    worker.ready, worker.assignments.before, worker.assignments.sent = True, [NEXT], Sent.NEVER
    assert not worker.give([NEXT.delivery])
    assert worker.process.alive
    assert not worker.is_able
