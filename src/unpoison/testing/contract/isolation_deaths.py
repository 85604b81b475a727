"""A message that takes its worker down is charged for each start; its neighbours run once, and the consumer lives on."""

from typing import Any

import pytest

from unpoison.testing.isolation import tree
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

MIB = 1024 * 1024
LIMIT = 2

DEATHS = {
    "an exit code": ("exit", None, "crash"),
    "exit code 0": ("exit", 0, "crash"),
    "a segmentation fault": ("segfault", None, "crash"),
    "SIGKILL": ("die", None, "crash"),
    "abort": ("abort", None, "crash"),
    "a real stack overflow": ("overflow", None, "crash"),
    "an endless loop": ("loop", None, "timeout"),
    "a stuck C call": ("get_stuck", None, "timeout"),
    "a regular expression": ("match", None, "timeout"),
    "closing all descriptors": ("close", None, "timeout"),
    "sys.exit": ("sys_exit", None, "unknown"),
    "killing the template and itself": ("kill_template_and_die", None, "crash"),
}


@pytest.mark.parametrize(("deed", "argument", "classification"), DEATHS.values(), ids=DEATHS)
def test_a_message_that_takes_its_worker_down_is_charged_alone(lab: Lab, deed: str, argument: Any, classification: str) -> None:
    with Scene(lab, max_attempts=LIMIT, timeout=0.5) as scene:
        healthy = scene.healthy(30, "before")
        scene.publish({"poison": {"do": deed, "how": argument}})
        healthy += scene.healthy(30, "after")
        with scene.consumer() as consumer:
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(healthy)
            assert_nothing_lingers(consumer.pid, workers=3)
        assert_only_the_poison_paid(scene, healthy, consumer.pid)
        letter = scene.letters()["poison"]
        assert (letter.classification, letter.attempts) == (classification, LIMIT)
        assert [entry.attempt for entry in scene.diary.entries("start") if entry.id == "poison"] == [1, 2]


def test_a_message_that_runs_out_of_memory_is_charged_alone(lab: Lab) -> None:
    with Scene(lab, max_attempts=LIMIT, settings={"worker_memory": 256 * MIB}) as scene:
        scene.publish({"poison": {"do": "allocate", "how": 400}, "modest": {"do": "allocate", "how": 50}})
        healthy = ["modest", *scene.healthy(10)]
        consumer = scene.drained()
        assert_only_the_poison_paid(scene, healthy, consumer.pid)
        letter = scene.letters()["poison"]
        assert (letter.error_type, letter.attempts) == ("MemoryError", LIMIT)


@pytest.mark.parametrize("style", ["sync", "threads", "async"])
def test_a_handler_that_forks_and_returns_in_both_is_run_once_and_so_are_its_neighbours(lab: Lab, style: str) -> None:
    threads = 4 if style == "threads" else 1
    with Scene(lab, style=style, concurrency=4, threads=threads) as scene:
        healthy = scene.healthy(20, "before")
        scene.publish({f"forking-{n}": {"do": "fork"} for n in range(3)})
        healthy += [f"forking-{n}" for n in range(3)] + scene.healthy(20, "after")
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(healthy)
            tree.expect_no_zombie(consumer.pid)
        assert scene.diary.starts() == dict.fromkeys(healthy, 1)
        done = scene.diary.done()
        assert all(done[id_] == 1 for id_ in healthy if "forking" not in id_)
        # The handler goes on in both processes, but the forked one may be ended with its worker before it gets that far.
        assert all(done[id_] in (1, 2) for id_ in healthy if "forking" in id_), "something else than the handler went on"
        assert (scene.letters(), scene.depth().empty) == ({}, True)


def test_an_async_handler_that_forks_and_waits_runs_none_of_its_neighbours_twice(lab: Lab) -> None:
    with Scene(lab, style="async", concurrency=10) as scene:
        waiting = scene.healthy(5, "waiting", do="wait", how="open")
        with scene.consumer() as consumer:
            scene.diary.wait_for_start(*waiting)
            scene.publish({"forking": {"do": "fork_and_wait", "how": "open"}})
            scene.diary.wait_for_start("forking")
            tree.expect_no_zombie(consumer.pid)
            scene.open_gate("open")
            scene.diary.wait_for_done([*waiting, "forking"])
        assert scene.diary.done() == dict.fromkeys([*waiting, "forking"], 1)


@pytest.mark.parametrize("deed", ["leave_subprocess", "leave_shell", "fork_and_stay", "close_and_return"])
def test_nothing_that_a_handler_leaves_behind_outlives_its_worker(lab: Lab, deed: str) -> None:
    with Scene(lab, settings={"recycle_messages": 5}, concurrency=1) as scene:
        scene.publish({f"leaving-{n}": {"do": deed} for n in range(3)})
        ids = [f"leaving-{n}" for n in range(3)] + scene.healthy(20)
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(ids)
            assert_nothing_lingers(consumer.pid, workers=2)
        assert set(scene.diary.done()) == set(ids)
        assert (scene.letters(), scene.depth().empty) == ({}, True)


@pytest.mark.parametrize("style", ["sync", "threads"])
def test_a_message_that_closes_its_workers_line_may_still_end(lab: Lab, style: str) -> None:
    threads = 2 if style == "threads" else 1
    with Scene(lab, style=style, max_attempts=LIMIT, concurrency=2 * threads, threads=threads) as scene:
        scene.publish({"closing": {"do": "close_and_wait", "how": "open"}})
        healthy = scene.healthy(20, "behind")
        with scene.consumer(until_empty=True) as consumer:
            scene.diary.wait_for_start("closing")
            healthy += scene.healthy(20, "later")
            scene.diary.wait_for_done(healthy)
            scene.open_gate("open")
            assert consumer.wait() == 0, consumer.text()[-8000:]
        assert scene.diary.starts()["closing"] == 1
        assert set(scene.diary.done()) == {"closing", *healthy}
        assert (scene.letters(), scene.depth().empty) == ({}, True)


def test_a_message_that_kills_the_template_and_returns_is_done_and_workers_go_on(lab: Lab) -> None:
    with Scene(lab, settings={"recycle_messages": 5}) as scene:
        scene.publish({"killer": {"do": "kill_template"}})
        ids = ["killer", *scene.healthy(40)]
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(ids)
            assert_nothing_lingers(consumer.pid, workers=3)
            assert tree.template_of(consumer.pid)
        assert scene.diary.starts() == dict.fromkeys(ids, 1)
        assert scene.letters() == {}


def test_a_template_that_stands_still_is_replaced(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, concurrency=1) as scene:
        scene.publish({"poison": {"do": "stop_template_and_die"}})
        healthy = scene.healthy(10)
        consumer = scene.drained()
        assert scene.diary.starts() == dict.fromkeys(["poison", *healthy], 1)
        assert set(scene.letters()) == {"poison"}
        assert {entry.consumer for entry in scene.diary.entries()} == {consumer.pid}


def test_a_message_that_kills_itself_and_its_siblings_is_the_only_one_to_be_dead_lettered(lab: Lab) -> None:
    with Scene(lab, max_attempts=3, concurrency=3) as scene:
        victims = ["victim-0", "victim-1"]
        scene.publish({id_: {"do": "wait", "how": "open"} for id_ in victims})
        scene.publish({"killer": {"do": "kill_busy_siblings_and_die", "how": victims}})
        healthy = scene.healthy(10)
        with scene.consumer() as consumer:
            wait_until(lambda: max(scene.diary.starts()[id_] for id_ in victims) > 1, lambda: "no victim was started again")
            scene.open_gate("open")
            consumer.wait_for_line("'killer'", "is a dead letter")
            scene.diary.wait_for_done([*victims, *healthy])
            assert_nothing_lingers(consumer.pid, workers=4)
        assert set(scene.letters()) == {"killer"}
        starts = scene.diary.starts()
        assert starts["killer"] <= 4
        assert [entry.attempt for entry in scene.diary.entries("start") if entry.id in victims] == [1] * sum(
            starts[id_] for id_ in victims
        ), "a victim was charged"


def assert_nothing_lingers(consumer: int, workers: int) -> None:
    """The consumer has exactly its template and its workers below it, and has collected all that ended."""
    tree.expect_no_zombie(consumer)
    tree.expect_children(consumer, workers + 1)


def assert_only_the_poison_paid(scene: Scene, healthy: list[str], consumer: int) -> None:
    starts = scene.diary.starts()
    assert starts == {"poison": LIMIT, **dict.fromkeys(healthy, 1)}
    assert set(scene.letters()) == {"poison"}
    assert scene.depth().empty
    assert {entry.consumer for entry in scene.diary.entries()} == {consumer}, "the consumer was restarted"
