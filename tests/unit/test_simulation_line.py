"""Do the broker and the workers of a simulation behave like real ones where it matters?"""

import msgspec
import pytest

from unpoison.control.options import DEFAULT_CONTROL
from unpoison.model.backoff import Limits
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import UNTRIED, Counters
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.simulation.crew import Crew
from unpoison.simulation.ledger import Ledger
from unpoison.simulation.line import Line
from unpoison.simulation.run import most_in_a_second
from unpoison.simulation.scenario import BEFORE, Kind, Variant, usual
from unpoison.simulation.trouble import Drawn, Ran, trouble


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger():
    return Ledger(usual(Kind.OUTAGE, rate=10.0, length=60.0))


@pytest.fixture
def line(clock, ledger):
    return Line(10.0, 7, clock, ledger)


def numbers(deliveries):
    return [delivery.receipt[0] for delivery in deliveries]


def test_messages_arrive_at_an_even_pace_and_in_order(line, clock):
    assert line.fetch("orders", 5) == []
    clock.now = 1.0
    assert numbers(line.fetch("orders", 4)) == [0, 1, 2, 3]
    assert numbers(line.fetch("orders", 100)) == [4, 5, 6, 7, 8, 9]
    clock.now = 1.3
    assert [each.id for each in line.fetch("orders", 100)] == ["7-10", "7-11", "7-12"]


def test_messages_that_were_never_tried_share_their_counters(line, clock):
    clock.now = 1.0
    assert all(each.counters is UNTRIED for each in line.fetch("orders", 10))


@pytest.mark.parametrize("rate", [0.3, 1.0, 7.0, 333.3])
def test_none_is_lost_to_rounding(rate, clock, ledger):
    line = Line(rate, 0, clock, ledger)
    for step in range(1, 601):
        clock.now = step / 20
        line.fetch("orders", 1_000)
    assert line.arrived(30.0) == int(rate * 30 + 0.001)


def test_what_is_kept_comes_back_when_it_is_due_behind_all_that_has_arrived_by_then(line, clock):
    clock.now = 1.0
    first, *_ = line.fetch("orders", 10)
    line.settle(Settlement(kept=[Kept(first, Counters(attempts=1), after=0.5)]))
    clock.now = 1.4
    assert numbers(line.fetch("orders", 100)) == [10, 11, 12, 13]
    clock.now = 2.0
    again = line.fetch("orders", 100)
    assert numbers(again) == [14, 0, 15, 16, 17, 18, 19]
    assert again[1].counters == Counters(attempts=1)


def test_a_limit_holds_among_new_and_returning_messages(line, clock):
    clock.now = 1.0
    for delivery in line.fetch("orders", 3):
        line.settle(Settlement(kept=[Kept(delivery, Counters())]))
    assert numbers(line.fetch("orders", 8)) == [3, 4, 5, 6, 7, 8, 9, 0]
    assert numbers(line.fetch("orders", 8)) == [1, 2]


def test_the_ledger_hears_what_became_of_each_message(line, clock, ledger):
    clock.now = 1.0
    done, charged, put_off, dead = line.fetch("orders", 4)
    letter = DeadLetter(
        message=dead.message,
        attempts=5,
        classification="bug",
        rule="bug",
        reason="bug",
        error_type="KeyError",
        error="",
        traceback="",
        fingerprint="",
        first_failed_at=0.0,
        last_failed_at=0.0,
        consumer="",
        code_version=None,
    )
    kept = [Kept(charged, Counters(attempts=1), 9.0), Kept(put_off, Counters(put_off=1), 1.0)]
    line.settle(Settlement([done], kept, [Dead(dead, letter)]))
    assert (ledger.done, ledger.dead, ledger.most_charged, ledger.put_offs) == (1, 1, 5, 1)
    assert line.waiting() == 8
    clock.now = 3.0
    (again,) = [each for each in line.fetch("orders", 100) if each.receipt[0] == put_off.receipt[0]]
    line.settle(Settlement(kept=[Kept(again, msgspec.structs.replace(again.counters, put_off=2), 1.0)]))
    assert (ledger.most_put_off, ledger.messages_put_off, ledger.put_offs) == (2, 1, 2)


class AllWell:
    def run(self, deliveries, now):
        return Ran(len(deliveries), {})


@pytest.fixture
def crew(clock, ledger):
    return Crew(3, AllWell(), clock, ledger)


def test_workers_run_so_many_at_once_and_take_as_many_again(crew, line, clock):
    clock.now = 1.0
    assert crew.room() == 6
    crew.start(line.fetch("orders", crew.room()))
    assert (crew.room(), crew.ended()) == (0, [])
    crew.step()
    assert (crew.running(), crew.ended()) == (6, [])
    crew.step()
    (ended,) = crew.ended()
    assert numbers(ended.deliveries) == [0, 1, 2]
    assert (crew.running(), crew.room()) == (3, 3)


@pytest.mark.parametrize(
    ("per_step", "steps", "run"), [(0.03, 400, 12), (0.5, 10, 5), (1.0, 10, 10), (4.5, 10, 45), (2.25, 8, 18)]
)
def test_parts_of_a_message_add_up_over_the_steps(per_step, steps, run, line, clock, ledger):
    clock.now = 100.0
    crew = Crew(per_step, AllWell(), clock, ledger)
    for _ in range(steps):
        crew.start(line.fetch("orders", crew.room()))
        crew.step()
    crew.step()
    assert sum(len(ended.deliveries) for ended in crew.ended()) == pytest.approx(run, abs=1)


@pytest.mark.parametrize("per_step", [0.25, 4.5])
def test_idle_workers_save_up_less_than_a_message_beside_those_of_a_step(per_step, line, clock, ledger):
    clock.now = 100.0
    crew = Crew(per_step, AllWell(), clock, ledger)
    for _ in range(100):
        crew.step()
    crew.start(line.fetch("orders", 100))
    crew.step()
    crew.step()
    (ended,) = crew.ended()
    assert len(ended.deliveries) <= per_step + 1


def test_what_has_not_begun_can_be_taken_back(crew, line, clock):
    clock.now = 1.0
    crew.start(line.fetch("orders", 5))
    crew.step()
    assert numbers(crew.take_back()) == [3, 4]
    assert crew.running() == 3


def test_an_interruption_leaves_nothing_behind(crew, line, clock):
    clock.now = 1.0
    crew.start(line.fetch("orders", 6))
    crew.step()
    crew.step()
    crew.start(line.fetch("orders", 2))
    cut = crew.interrupt()
    assert [numbers(ended.deliveries) for ended in cut.ended] == [[0, 1, 2]]
    assert (numbers(cut.running), numbers(cut.unstarted), crew.running()) == ([3, 4, 5], [6, 7], 0)
    crew.step()
    assert crew.ended() == []


def test_calls_are_counted_by_second(ledger, line, clock):
    clock.now = 2.5
    messages = line.fetch("orders", 3)
    ledger.called(messages, 3, 0, 0.9)
    ledger.called(messages[:1], 1, 1, 2.1)
    assert ledger.calls == [3, 0, 1]


def test_the_first_success_after_the_end_is_noted(ledger, line, clock):
    clock.now = 1.0
    messages = line.fetch("orders", 3)
    for now, failed in ((BEFORE, 0), (BEFORE + 61, 3), (BEFORE + 62, 2), (BEFORE + 63, 0)):
        ledger.called(messages, 3, failed, now)
    assert ledger.works_again_at == BEFORE + 62


def test_a_share_is_drawn_whatever_is_asked_first():
    drawn, again = Drawn(0.2, 3), Drawn(0.2, 3)
    found = [number for number in range(5_000) if number in drawn]
    assert len(found) == pytest.approx(1_000, rel=0.15)
    assert [number for number in reversed(range(5_000)) if number in again] == found[::-1]
    other = Drawn(0.2, 4)
    assert found != [number for number in range(5_000) if number in other]


@pytest.mark.parametrize("kind", [Kind.PARTIAL_OUTAGE, Kind.POISON])
def test_the_seed_draws_which_messages_fail(kind, line, clock):
    clock.now = BEFORE + 60
    messages = line.fetch("orders", 10_000)[-300:]
    failing = []
    for seed in (1, 1, 2):
        scenario = usual(kind, rate=10.0, length=60.0, share=0.2, seed=seed)
        meets = trouble(scenario, Variant("all on", DEFAULT_CONTROL, Limits()), 1.0)
        failing.append(meets.run(messages, BEFORE + 30).failures.keys())
    assert failing[0] == failing[1] != failing[2]
    assert len(failing[0]) == pytest.approx(60, rel=0.5)


def test_the_most_within_a_second_is_found_wherever_it_begins():
    assert most_in_a_second([]) == 0
    assert most_in_a_second([0.0, 1.0, 2.0]) == 1
    assert most_in_a_second([0.5, 0.9, 1.4, 1.6, 9.0]) == 3
