"""How does a suspect get the process to itself, and how do the others get it back?"""

import threading
from itertools import permutations

import pytest

from unpoison.decide.options import ConsumerOptions
from unpoison.errors import BrokerUnavailable
from unpoison.flow.suspects import ExclusiveRun, Suspects
from unpoison.model.backoff import Limits


class Bells:
    """Two or more consumers of one process, and which of them were woken."""

    def __init__(self, *names: str) -> None:
        self.alone, self.rung = ExclusiveRun(), []
        for name in names:
            self.alone.join(name, lambda name=name: self.rung.append(name))


def test_consumers_are_inside_together_while_nobody_asks():
    alone = Bells("a", "b").alone
    assert alone.enter("a")
    assert alone.enter("b")
    assert alone.enter("a")


def test_from_the_question_on_nobody_enters_not_even_the_one_that_asks():
    alone = Bells("a", "b").alone
    assert alone.ask("a")
    assert not alone.enter("b")
    assert not alone.enter("a")


def test_the_one_that_asks_waits_until_everybody_else_went_idle_and_is_woken_then():
    bells = Bells("a", "b", "c")
    assert bells.alone.enter("b")
    assert bells.alone.enter("c")
    assert not bells.alone.ask("a")
    bells.alone.went_idle("b")
    assert not bells.alone.ask("a")
    assert bells.rung == []
    bells.alone.went_idle("c")
    assert bells.rung == ["a"]
    assert bells.alone.ask("a")


def test_one_that_asks_while_it_runs_something_itself_has_to_finish_it_first():
    bells = Bells("a")
    assert bells.alone.enter("a")
    assert not bells.alone.ask("a")
    bells.alone.went_idle("a")
    assert bells.alone.ask("a")


def test_a_second_one_that_asks_has_its_turn_after_the_first():
    bells = Bells("a", "b")
    assert bells.alone.ask("a")
    assert not bells.alone.ask("b")
    bells.alone.done("a")
    assert bells.alone.ask("b")
    assert not bells.alone.ask("a")


def test_when_the_suspect_is_settled_everybody_is_woken_and_may_enter():
    bells = Bells("a", "b", "c")
    assert bells.alone.ask("a")
    bells.alone.done("a")
    assert sorted(bells.rung) == ["a", "b", "c"]
    assert bells.alone.enter("b")
    assert bells.alone.enter("c")


def test_only_the_one_that_has_the_process_can_give_it_back():
    bells = Bells("a", "b")
    assert bells.alone.ask("a")
    bells.alone.done("b")
    assert not bells.alone.enter("b")


@pytest.mark.parametrize("asks", [True, False])
def test_a_consumer_that_leaves_holds_nobody_up(asks):
    bells = Bells("a", "b")
    if asks:
        assert bells.alone.ask("b")
    else:
        assert bells.alone.enter("b")
        assert not bells.alone.ask("a")
    bells.alone.leave("b")
    assert "a" in bells.rung
    assert bells.alone.enter("a") if asks else bells.alone.ask("a")


def test_one_that_left_is_not_woken_any_more():
    bells = Bells("a", "b")
    bells.alone.leave("b")
    bells.rung.clear()
    assert bells.alone.ask("a")
    bells.alone.done("a")
    assert bells.rung == ["a"]


class GoesAway:
    """A broker that has a suspect, and is gone when asked again."""

    def __init__(self) -> None:
        self.answers = [True]

    def has_suspect(self, source):
        if not self.answers:
            raise BrokerUnavailable("gone")
        return self.answers.pop()


def test_a_consumer_whose_broker_goes_away_while_it_asks_holds_nobody_up():
    bells = Bells("other")
    suspects = Suspects(ConsumerOptions("orders", Limits()), GoesAway(), None, bells.alone, None, "host")
    assert bells.alone.enter("other")
    assert not suspects.start_one(is_busy=False)
    bells.alone.went_idle("other")
    assert not bells.alone.enter("other")
    assert not suspects.start_one(is_busy=False)
    assert bells.alone.enter("other")


@pytest.mark.parametrize("order", list(permutations(["ask", "enter", "went_idle"])))
def test_never_are_two_inside_when_one_of_them_has_the_process_to_itself(order):
    """In whatever order the three calls of two consumers fall."""
    alone, inside = Bells("a", "b").alone, set()
    has_it = False
    for call in order:
        if call == "ask":
            has_it = alone.ask("a")
        elif call == "enter":
            if alone.enter("b"):
                inside.add("b")
        else:
            alone.went_idle("b")
            inside.discard("b")
        assert not (has_it and inside)


def test_many_threads_never_run_beside_one_that_is_alone():
    """Each consumer counts itself in while it runs; whoever is alone must find nobody else counted."""
    alone, names, rounds = ExclusiveRun(), [f"consumer {n}" for n in range(4)], 60
    running, wrong, ran_alone = set(), [], []
    woken = {name: threading.Event() for name in names}
    for name in names:
        alone.join(name, woken[name].set)

    def consume(name: str) -> None:
        for turn in range(rounds):
            if turn % 3 == 0:
                while not alone.ask(name):
                    woken[name].wait(0.001)
                    woken[name].clear()
                if running:
                    wrong.append((name, set(running)))
                ran_alone.append(name)
                alone.done(name)
                continue
            while not alone.enter(name):
                woken[name].wait(0.001)
                woken[name].clear()
            running.add(name)
            running.discard(name)
            alone.went_idle(name)
        alone.leave(name)

    threads = [threading.Thread(target=consume, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert len(ran_alone) == len(names) * rounds // 3
