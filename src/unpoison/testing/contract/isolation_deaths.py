"""A message that takes its worker down is charged for each start, alone, and its dead letter tells how the worker ended."""

import time
from typing import Any

import pytest

from unpoison.model.failure import Crash
from unpoison.testing.isolation import processes
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


@pytest.mark.parametrize(("action", "argument", "classification"), DEATHS.values(), ids=DEATHS)
def test_a_message_that_takes_its_worker_down_is_charged_alone(lab: Lab, action: str, argument: Any, classification: str) -> None:
    with Scene(lab, max_attempts=LIMIT, timeout=0.5) as scene:
        healthy = scene.healthy(30, "before")
        scene.publish({"poison": {"do": action, "how": argument}})
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
            processes.expect_no_zombie(consumer.pid)
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
            processes.expect_no_zombie(consumer.pid)
            scene.open_gate("open")
            scene.diary.wait_for_done([*waiting, "forking"])
        assert scene.diary.done() == dict.fromkeys([*waiting, "forking"], 1)


@pytest.mark.parametrize("action", ["leave_subprocess", "leave_shell", "fork_and_stay", "close_and_return"])
def test_nothing_that_a_handler_leaves_behind_outlives_its_worker(lab: Lab, action: str) -> None:
    with Scene(lab, settings={"recycle_messages": 5}, concurrency=1) as scene:
        scene.publish({f"leaving-{n}": {"do": action} for n in range(3)})
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
            assert processes.template_of(consumer.pid)
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
    processes.expect_no_zombie(consumer)
    processes.expect_children(consumer, workers + 1)


def assert_only_the_poison_paid(scene: Scene, healthy: list[str], consumer: int) -> None:
    starts = scene.diary.starts()
    assert starts == {"poison": LIMIT, **dict.fromkeys(healthy, 1)}
    assert set(scene.letters()) == {"poison"}
    assert scene.depth().empty
    assert {entry.consumer for entry in scene.diary.entries()} == {consumer}, "the consumer was restarted"


# A dead letter of a crash or a timeout tells how the worker ended: enough to find the line that did it.


def dossier(scene: Scene, id_: str) -> Crash:
    crash = scene.letters()[id_].crash
    assert crash is not None, f"the letter of {id_!r} has no crash dossier"
    return crash


def test_the_letter_of_a_crash_tells_signal_memory_stack_log_and_age(lab: Lab) -> None:
    began = time.monotonic()
    with Scene(lab, max_attempts=2, concurrency=1) as scene:
        scene.publish({"poison": {"do": "log_and_segfault", "how": 80}})
        scene.drained()
        crash = dossier(scene, "poison")
        lasted = time.monotonic() - began
        assert (crash.signal, crash.exit_code) == ("SIGSEGV", None)
        assert crash.elapsed is not None
        assert crash.worker_age is not None
        assert 0 < crash.elapsed <= crash.worker_age <= lasted
        assert crash.peak_rss is not None
        assert 80 * MIB < crash.peak_rss < 1000 * MIB
        assert "a_function_of_the_shop" in crash.stack
        lines = crash.log.splitlines()
        assert lines[-1] == "WARNING shop: line 99 before the end"
        assert 10 <= len(lines) <= 100
        letter = scene.letters()["poison"]
        assert "SIGSEGV" in letter.reason
        assert "a_function_of_the_shop" in letter.traceback
        assert [past.classification for past in letter.history] == ["crash", "crash"]


def test_the_letter_of_an_exit_tells_the_exit_code(lab: Lab) -> None:
    with Scene(lab, max_attempts=1) as scene:
        scene.publish({"poison": {"do": "exit", "how": 42}})
        scene.drained()
        crash = dossier(scene, "poison")
        assert (crash.signal, crash.exit_code) == (None, 42)
        assert "42" in scene.letters()["poison"].reason


def test_the_letter_of_a_timeout_tells_where_it_hung(lab: Lab) -> None:
    limit = 0.5
    with Scene(lab, max_attempts=1, timeout=limit, concurrency=1) as scene:
        scene.publish({"loop": {"do": "loop"}, "stuck": {"do": "get_stuck"}})
        scene.drained()
        for id_, place in (("loop", "in loop"), ("stuck", "in get_stuck")):
            crash = dossier(scene, id_)
            assert place in crash.stack
            assert crash.elapsed is not None
            assert crash.elapsed >= limit
            assert crash.worker_age is not None
            assert crash.peak_rss is not None
            assert scene.letters()[id_].classification == "timeout"


def test_the_stack_of_a_crash_is_that_of_the_crash_and_not_of_an_earlier_look(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, timeout=0.5, concurrency=1) as scene:
        scene.healthy(3, "near-miss", do="end_when_looked_at")
        scene.publish({"poison": {"do": "log_and_segfault", "how": 1}})
        scene.drained()
        stack = dossier(scene, "poison").stack
        assert "a_function_of_the_shop" in stack
        assert "end_when_looked_at" not in stack


def test_in_async_the_letters_of_crash_and_timeout_have_a_dossier_too(lab: Lab) -> None:
    with Scene(lab, style="async", max_attempts=1, timeout=0.5, concurrency=4) as scene:
        scene.publish({"crash": {"do": "log_and_segfault", "how": 1}, "loop": {"do": "loop"}})
        scene.drained()
        assert (dossier(scene, "crash").signal, "a_function_of_the_shop" in dossier(scene, "crash").stack) == ("SIGSEGV", True)
        assert "in loop" in dossier(scene, "loop").stack
