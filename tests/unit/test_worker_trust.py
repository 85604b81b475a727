"""When is a worker replaced, and what is left alone because every worker does it?"""

import logging
from types import SimpleNamespace

import pytest

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.worker import wire
from unpoison.worker.health import REVERSIBLE
from unpoison.workers.damage import FAILURES_IN_A_ROW, NAMED, Trust
from unpoison.workers.interface import Ended


class PooledWorker(SimpleNamespace):
    """A worker as far as trust in it goes."""

    def __init__(self, pid=1):
        marks = SimpleNamespace(habits=0)
        super().__init__(
            retiring=False, put_back=set(), failing=set(), assignments=self, process=SimpleNamespace(pid=pid, marks=marks)
        )
        self.did_it = []

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def candidates(self, said):
        return self.did_it

    @property
    def habits(self):
        return [name for n, name in enumerate(REVERSIBLE) if self.process.marks.habits >> n & 1]


def damaged(trust, worker, *ids, what=("umask",), lasting=False, others=()):
    worker.did_it = list(ids)
    trust.damaged(worker, wire.Damaged(0, 0, 0, list(what), list(what), lasting), [worker, *others])


@pytest.fixture
def trust(caplog):
    caplog.set_level(logging.DEBUG, "unpoison")
    return Trust("orders")


def failure(**facts):
    return Failure(classification=ErrorClassification.TRANSIENT, rule="r", type_name="Error", **facts)


def ended(*outcomes, first=0):
    """Deliveries that ended in this order: None is a success."""
    deliveries = [Delivery(n, "orders", f"m{first + n}", b"") for n in range(len(outcomes))]
    return Ended(deliveries, {n: outcome for n, outcome in enumerate(outcomes) if outcome is not None})


def test_what_was_put_back_keeps_its_worker_and_is_told_with_the_messages(trust, caplog):
    worker = PooledWorker(pid=77)
    damaged(trust, worker, "a", "b")
    assert not worker.retiring
    (line,) = caplog.records
    assert line.getMessage() == (
        "Worker 77 of 'orders' was damaged by one of its messages: umask. That was undone. "
        "To change it for good, do so in on_worker_start. It was one of 'a', 'b'."
    )
    assert line.candidates == ["a", "b"]


def test_what_stays_broken_costs_the_worker_its_place(trust, caplog):
    worker = PooledWorker()
    damaged(trust, worker, *(f"m{n}" for n in range(30)), lasting=True)
    assert worker.retiring
    (line,) = caplog.records
    assert "The worker is replaced. It was one of 30 messages, the last of which are 'm10'" in line.getMessage()
    assert len(line.candidates) == 30 > NAMED


def test_the_same_thing_put_back_again_in_one_worker_is_no_news(trust, caplog):
    worker = PooledWorker()
    damaged(trust, worker, "a")
    damaged(trust, worker, "a")
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]


def test_what_different_messages_change_in_two_workers_is_left_alone_in_all_of_them(trust, caplog):
    first, second, third, late = PooledWorker(1), PooledWorker(2), PooledWorker(3), PooledWorker(4)
    damaged(trust, first, "a", "b", others=[second, third])
    damaged(trust, second, "c", "d", others=[first, third])
    assert [worker.habits for worker in (first, second, third)] == [["umask"]] * 3
    assert [worker.retiring for worker in (first, second, third)] == [True, True, False], "it was put back in those two"
    trust.prepare(late)
    assert late.habits == ["umask"]
    assert [record.event for record in caplog.records] == ["worker-damaged", "worker-habit"]
    assert "Handlers of 'orders' change the umask of their workers" in caplog.text


def test_a_worker_that_had_not_yet_read_of_the_habit_reports_nothing_new(trust, caplog):
    first, second, late = PooledWorker(1), PooledWorker(2), PooledWorker(3)
    damaged(trust, first, "a", others=[second, late])
    damaged(trust, second, "b", others=[first, late])
    damaged(trust, late, "c", others=[first, second])
    damaged(trust, first, "d", others=[second, late])
    assert [record.event for record in caplog.records] == ["worker-damaged", "worker-habit"]
    assert late.retiring, "it was put back in this one too"


def test_a_known_habit_does_not_hide_other_damage(trust, caplog):
    first, second, late = PooledWorker(1), PooledWorker(2), PooledWorker(3)
    damaged(trust, first, "a", others=[second, late])
    damaged(trust, second, "b", others=[first, late])
    damaged(trust, late, "c", what=("umask", "locale"))
    trust.damaged(PooledWorker(4), wire.Damaged(0, 0, 0, ["sys.stdout", "umask"], ["umask"], True), [])
    assert [record.event for record in caplog.records[2:]] == ["worker-damaged", "worker-damaged"]
    assert [record.getMessage().split(": ")[1].split(".")[0] for record in caplog.records[2:]] == ["locale", "sys"]
    assert "umask" not in caplog.records[2].getMessage() + caplog.records[3].getMessage()


def test_one_message_that_does_it_again_and_again_makes_no_habit(trust):
    for pid in range(10):
        worker = PooledWorker(pid)
        damaged(trust, worker, "innocent", "guilty")
        assert worker.habits == []


def test_in_a_single_worker_it_takes_more_to_make_a_habit(trust):
    worker = PooledWorker()
    damaged(trust, worker, "a")
    damaged(trust, worker, "b")
    assert worker.habits == []
    damaged(trust, worker, "c")
    assert worker.habits == ["umask"]


def test_what_cannot_be_put_back_is_nobodys_habit(trust):
    for pid in range(5):
        worker = PooledWorker(pid)
        worker.did_it = [f"m{pid}"]
        trust.damaged(worker, wire.Damaged(0, 0, 0, ["sys.stdout"], [], True), [worker])
        assert (worker.retiring, worker.habits) == (True, [])


def test_a_run_of_failures_of_different_messages_costs_the_worker_its_place(trust):
    worker = PooledWorker()
    assert trust.ended(worker, ended(*[failure()] * (FAILURES_IN_A_ROW - 1)))
    assert trust.ended(worker, ended(failure())), "the first of them again"
    assert not trust.ended(worker, ended(failure(), first=100))


@pytest.mark.parametrize("well", [None, failure(discard=True)], ids=["a success", "a discard"])
def test_whatever_goes_well_in_between_ends_the_run(trust, well):
    worker = PooledWorker()
    some = [failure()] * (FAILURES_IN_A_ROW - 1)
    assert trust.ended(worker, ended(*some, well, *some))
    assert trust.ended(worker, ended(well))
    assert trust.ended(worker, ended(*some))


@pytest.mark.parametrize("facts", [{"charged": False}, {"started": False}])
def test_what_the_handler_asked_for_or_never_saw_says_nothing_about_its_worker(trust, facts):
    assert trust.ended(PooledWorker(), ended(*[failure(**facts)] * 100))


def test_in_an_outage_workers_are_replaced_ever_more_rarely_and_a_success_makes_it_quick_again(trust):
    replaced, worker = [], PooledWorker()
    for n in range(1000):
        if not trust.ended(worker, ended(failure(), first=n)):
            replaced.append(n + 1)
            worker = PooledWorker()
    assert replaced == [20, 60, 140, 300, 620]
    trust.ended(worker, ended(None))
    assert not trust.ended(worker, ended(*[failure()] * FAILURES_IN_A_ROW))
