"""How handler durations, starts and recovered messages are counted, and how dependencies stay few."""

import pytest

from unpoison.control.breaker import CircuitState
from unpoison.control.budget import FLOOR, RetryBudget
from unpoison.control.changes import OperatorPause
from unpoison.control.options import ControlOptions
from unpoison.control.source import SourceControl
from unpoison.flow.counting import MOST_KNOWN, StartCounter
from unpoison.model.backoff import Limits
from unpoison.model.failure import Failure
from unpoison.model.message import UNTRIED, Counters, Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.observing.counts import MOST_DEPENDENCIES, OTHER, Dependencies
from unpoison.reporting.numbers import BOUNDS, Durations, SourceNumbers
from unpoison.worker.marks import BATCH, Marks, create
from unpoison.workers.interface import Bystanders, Ended, Interrupted

MS = 1_000_000
CRASH = Failure(classification=ErrorClassification.CRASH, rule="r", type_name="t", blames_process=True)
UNFIT = Failure(classification=ErrorClassification.INVALID, rule="r", type_name="t", started=False)


def message(name="m", **counters):
    return Delivery(0, "orders", name, b"", counters=Counters(**counters) if counters else UNTRIED)


def counted(durations):
    """How many are in each bucket that is not empty, by its upper bound."""
    return {bound: count for bound, count in zip((*BOUNDS, None), durations.counts, strict=True) if count}


def test_a_duration_counts_where_it_is_not_above_the_bound():
    durations = Durations()
    for took in (0, 1 * MS, 1 * MS + 1, 300_000 * MS, 300_001 * MS):
        durations.add(took)
    assert counted(durations) == {0.001: 2, 0.0025: 1, 300.0: 1, None: 1}
    assert durations.total == sum((0, 1 * MS, 1 * MS + 1, 300_000 * MS, 300_001 * MS))


def test_a_batch_is_timed_by_when_each_of_it_began():
    durations = Durations()
    durations.add_batch([0, 2 * MS, 2 * MS, 9 * MS], {})
    assert (counted(durations), durations.total) == ({0.0025: 1, 0.001: 1, 0.01: 1}, 9 * MS)


def test_a_short_batch_is_counted_without_a_look_at_each_of_it():
    durations = Durations()
    durations.add_batch(range(257), {})
    assert (counted(durations), durations.total) == ({0.001: 256}, 256)


def test_what_was_done_about_a_failure_is_not_its_duration():
    durations = Durations()
    durations.add_batch([0, 1 * MS, 80 * MS, 81 * MS], {1: 4 * MS})
    assert (counted(durations), durations.total) == ({0.001: 2, 0.005: 1}, 6 * MS)


def test_what_was_not_started_has_no_duration():
    durations = Durations()
    durations.add_batch([0, 50 * MS], {0: None})
    assert counted(durations) == {}


@pytest.mark.parametrize("times", [[5, 2**63], [2**63, 5], [7, 3], [], [4], [0, 2**62, 2**63]])
def test_times_that_a_worker_has_written_over_are_left_out(times):
    durations = Durations()
    durations.add_batch(times, {})
    durations.add(-1)
    assert (counted(durations), durations.total) == ({}, 0)


@pytest.fixture
def marks():
    return Marks(create(1), 1)


def test_the_times_of_both_batches_stand_apart(marks):
    for slot in (0, 1):
        view = marks.batch_view(slot)
        for n in range(1, BATCH + 2):
            view.times[view.first + n] = 1000 * slot + n
    for slot in (0, 1):
        assert marks.times(slot, BATCH + 1) == [1000 * slot + n for n in range(1, BATCH + 2)]
        view = marks.batch_view(slot)
        view.words[view.what] = view.first + 7
        assert marks.running_in_batch() == (view.first + 7, 1000 * slot + 7)
    assert marks.outcome(0) == marks.outcome(2 * BATCH - 1) == 0


@pytest.mark.parametrize("noise", [0, 2**64 - 1, 2 * BATCH + 1])
def test_a_mark_that_is_none_has_no_time(marks, noise):
    view = marks.batch_view(0)
    view.words[view.what] = noise
    assert marks.running_in_batch() == (noise, 0)


@pytest.fixture
def counter():
    return StartCounter(SourceNumbers(), Limits(max_attempts=3))


def numbers(counter):
    found = counter._numbers
    return found.starts, found.recovered, found.over_limit


def test_starts_are_those_whose_handler_ran(counter):
    counter.ended([Ended([message(), message("n")], {1: UNFIT}), Bystanders([message("o")], must_run_alone=False)])
    counter.interrupted(Interrupted([Ended([message("p")])], [message("q")], [message("r"), message("s")]))
    assert numbers(counter) == (5, 1, 0)


def test_a_message_that_came_back_counts_once_however_often_it_is_retried(counter):
    for _ in range(3):
        counter.fetched([message("lost", vanished=1), message("new")])
    assert numbers(counter) == (0, 1, 0)
    counter.fetched([message("lost", vanished=2)])
    assert numbers(counter) == (0, 2, 0)


def test_one_that_is_set_aside_counts_again_only_if_it_is_lost_again(counter):
    counter.fetched([message("lost", vanished=2)])
    counter.fetched([message("lost", vanished=1, alone=True)])
    assert numbers(counter) == (0, 1, 0)
    counter.fetched([message("lost", vanished=1, alone=True, losses=1)])
    assert numbers(counter) == (0, 2, 0)


def test_a_bystander_counts_when_its_worker_dies_and_not_when_it_is_fetched_again(counter):
    counter.ended([Bystanders([message("beside")], must_run_alone=True)])
    counter.fetched([message("beside", vanished=1, alone=True)])
    assert numbers(counter) == (1, 1, 0)


def test_one_that_has_crashed_its_worker_is_a_failure_and_not_recovered(counter):
    counter.ended([Ended([message("poison")], {0: CRASH})])
    counter.fetched([message("poison", vanished=1, fresh=True)])
    assert numbers(counter) == (1, 0, 0)


def test_what_is_remembered_has_an_end(counter):
    for n in range(MOST_KNOWN + 10):
        counter.fetched([message(f"m{n}", vanished=1)])
    assert len(counter._known) == MOST_KNOWN
    assert numbers(counter) == (0, MOST_KNOWN + 10, 0)


def test_a_start_beyond_the_limit_is_counted(counter):
    counter.starting([message(attempts=2), message(attempts=3), message(attempts=1, losses=2), message()])
    assert numbers(counter) == (0, 0, 2)
    unlimited = StartCounter(SourceNumbers(), Limits(max_attempts=None))
    unlimited.starting([message(attempts=100)])
    assert numbers(unlimited) == (0, 0, 0)


def test_of_a_thousand_dependencies_twenty_have_names():
    dependencies = Dependencies("billing")
    down = {f"host-{n}": CircuitState.OPEN for n in range(1000)}
    for n in range(0, 1000, 10):
        some = {name: state for name, state in down.items() if int(name[5:]) < n}
        assert len(dependencies.states(some)) <= MOST_DEPENDENCIES + 1
    found = dependencies.states(down)
    assert len(found) == MOST_DEPENDENCIES + 1
    assert (found["billing"], found["host-0"], found[OTHER]) == (0, 2, 2)
    quiet = dependencies.states({})
    assert set(quiet) == set(found)  # a name that was there once stays, so that a rule sees it close
    assert set(quiet.values()) == {0}


def test_a_dependency_that_was_never_down_has_no_name():
    dependencies = Dependencies(None)
    assert dependencies.states({"billing": CircuitState.CLOSED}) == {}
    assert dependencies.states({"billing": CircuitState.RAMP}) == {"billing": 1}
    assert dependencies.states({"billing": CircuitState.CLOSED}) == {"billing": 0}


def test_a_dependency_called_other_is_not_mixed_up_with_the_others():
    dependencies = Dependencies(OTHER)
    for n in range(MOST_DEPENDENCIES):
        dependencies.is_down(f"host-{n}")
    assert dependencies.states({OTHER: CircuitState.RAMP})[OTHER] == 1
    assert dependencies.states({OTHER: CircuitState.RAMP, "host-19": CircuitState.OPEN})[OTHER] == 2


def test_what_is_left_of_the_retry_budget_grows_back():
    budget = RetryBudget(0.1)
    assert budget.left(0.0) == 1
    budget.grant(5, 0.0)
    assert budget.left(0.0) == 0.5
    assert budget.left(0.2) == pytest.approx(0.7)
    budget.grant(100, 0.0)
    assert budget.left(0.0) == 0
    assert budget.left(100.0) == 1
    assert (budget.grant(100, 0.0), FLOOR) == (0, 10)


def test_each_reason_of_a_pause_is_told():
    control = SourceControl(ControlOptions())
    assert control.pauses() == set()
    control.pause_by_operator(OperatorPause("ana", "", 0.0), 1.0)
    assert control.pauses() == {"operator"}
