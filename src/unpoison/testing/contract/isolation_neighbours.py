"""Whatever a message does, those behind it and beside it in the same worker run as if it were not there."""

import os
import signal
import time
from contextlib import suppress

import pytest

from unpoison.testing.isolation import processes
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab, Trait, trait


def test_a_hung_message_does_not_hold_its_batch_mates(lab: Lab) -> None:
    with Scene(lab, concurrency=2) as scene:
        quick = scene.healthy(300, "before")  # by these the consumer learns that it may hand out large batches
        scene.publish({"hung": {"do": "wait", "how": "open"}})
        quick += scene.healthy(300, "after")
        with scene.consumer():
            scene.diary.wait_for_done(quick)
            assert scene.diary.done()["hung"] == 0
            scene.open_gate("open")
            scene.diary.wait_for_done(["hung"])
        assert scene.diary.starts() == dict.fromkeys([*quick, "hung"], 1)
        assert scene.depth().empty


def test_hung_messages_do_not_hold_what_another_consumer_could_run(lab: Lab) -> None:
    with Scene(lab, concurrency=1) as scene:
        quick = scene.healthy(300, "before")
        scene.publish({"hung": {"do": "wait", "how": "open"}})
        quick += scene.healthy(300, "after")
        with scene.consumer() as first:
            scene.diary.wait_for_start("hung")
            with scene.consumer() as second:
                scene.diary.wait_for_done(quick)
                assert {entry.consumer for entry in scene.diary.entries("start")} == {first.pid, second.pid}
                scene.open_gate("open")
        assert scene.diary.starts() == dict.fromkeys([*quick, "hung"], 1)


@trait(Trait.SILENT)
@pytest.mark.parametrize("style", ["sync", "async"])
def test_time_in_which_everything_stood_still_is_nobodys_running_time(lab: Lab, style: str) -> None:
    limit = 2.5  # publishing to a slow broker takes half a second, and two of these run meanwhile
    with Scene(lab, style=style, timeout=limit, concurrency=3) as scene:
        warm_up = scene.healthy(20, "warm-up")  # so that the others start at once, well within the limit
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(warm_up)
            running = ["first", "second"]
            for id_ in running:  # one by one, or they could be handed to one worker together
                scene.publish({id_: {"do": "wait", "how": "open"}})
                scene.diary.wait_for_start(id_)
            with frozen(scene.plan.token):
                thawing = time.monotonic() + 1.2 * limit  # nothing else tells that time has passed for processes that stand still
                wait_until(lambda: time.monotonic() > thawing, lambda: "the clock stands still")
            scene.publish({"afterwards": {}})
            scene.diary.wait_for_done(["afterwards"])  # the consumer has looked at everything by then
            scene.open_gate("open")
            scene.diary.wait_for_done(running)
        assert scene.diary.starts() == dict.fromkeys([*warm_up, *running, "afterwards"], 1)
        assert not consumer.said("failed in attempt")


def test_a_thread_that_a_message_left_behind_and_that_crashes_later_dead_letters_no_innocent(lab: Lab) -> None:
    with Scene(lab, max_attempts=2, concurrency=1) as scene:
        guilty = [f"guilty-{n}" for n in range(3)]
        innocent = []
        for n, id_ in enumerate(guilty):
            scene.publish({id_: {"do": "leave_thread"}})
            innocent += scene.healthy(5, f"innocent-{n}", do="work", how=0.05)
        scene.drained()
        assert scene.letters() == {}
        assert set(scene.diary.done()) == {*guilty, *innocent}
        assert sum(scene.diary.starts()[id_] for id_ in innocent) > len(innocent), "the thread crashed nobody"


def test_a_message_is_convicted_only_in_a_worker_that_nobody_has_damaged_before(lab: Lab) -> None:
    with Scene(lab, max_attempts=2, concurrency=1, also={"delay": 0.5}) as scene:
        guilty = [f"guilty-{n}" for n in range(4)]
        bodies = {id_: {"do": "leave_thread", "how": "innocent"} for id_ in guilty}
        order = ["guilty-0", "innocent", *guilty[1:]]  # those behind damage the next worker, before the innocent one is retried
        scene.publish({id_: bodies.get(id_, {"do": "block", "how": 0.2}) for id_ in order})
        scene.drained()
        assert scene.diary.starts() == {**dict.fromkeys(guilty, 1), "innocent": 2}
        assert set(scene.diary.done()) == {*guilty, "innocent"}
        assert scene.letters() == {}


@pytest.mark.parametrize("style", ["sync", "threads", "async"])
@pytest.mark.parametrize("how", ["zeros", "ones", "ff", "noise", "success"])
def test_a_worker_that_overwrites_its_marks_settles_nothing_that_did_not_run(lab: Lab, how: str, style: str) -> None:
    limit = 3
    threads = 4 if style == "threads" else 1
    with Scene(lab, max_attempts=limit, style=style, concurrency=1 if style == "sync" else 4, threads=threads) as scene:
        innocent = scene.healthy(40, "before")
        scene.publish({"poison": {"do": "overwrite", "how": how}})
        innocent += scene.healthy(40, "after")
        scene.drained()
        assert set(scene.diary.done()) == set(innocent)
        assert set(scene.letters()) == {"poison"}
        assert scene.diary.starts()["poison"] <= limit + 1
        assert scene.depth().empty


def test_a_worker_that_forges_success_for_the_last_of_its_batch_is_not_believed(lab: Lab) -> None:
    """Nothing is behind it that could contradict; but it wrote further than its batch goes."""
    with Scene(lab, max_attempts=3, concurrency=1) as scene:
        innocent = scene.healthy(40)
        scene.publish({"poison": {"do": "overwrite", "how": "success"}})
        scene.drained()
        assert set(scene.diary.done()) == set(innocent)
        assert set(scene.letters()) == {"poison"}


class frozen:  # noqa: N801 - reads as a word: with frozen(…)
    """Every process of the scene stands still in the block, the consumer first, as when a machine is paused."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __enter__(self) -> None:
        self._pids = sorted(processes.alive(self._token))
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(processes.state(pid) == "T" for pid in self._pids), lambda: "not all of them stand still")

    def __exit__(self, *raised: object) -> None:
        for pid in reversed(self._pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# With several messages in one worker, as tasks or threads, the guilty one is still told apart from its neighbours.


LIMIT = 3

GUILTY_TASKS = {
    "segfault": "crash",
    "exit": "crash",
    "die": "crash",
    "loop": "timeout",
    "ignore_cancellation": "timeout",
    "exit_in_a_task": "unknown",
}


@pytest.mark.parametrize(("action", "classification"), GUILTY_TASKS.items(), ids=GUILTY_TASKS)
def test_in_async_one_of_fifty_that_crashes_or_blocks_the_loop_is_charged_alone(
    lab: Lab, action: str, classification: str
) -> None:
    with Scene(lab, style="async", max_attempts=2, concurrency=50, timeout=1.5) as scene:
        neighbours = scene.healthy(49, do="wait", how="open")
        with scene.consumer() as consumer:
            scene.diary.wait_for_start(*neighbours)
            scene.publish({"poison": {"do": action}})
            scene.diary.wait_for_start("poison")
            scene.open_gate("open")
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(neighbours)
        letters = scene.letters()
        assert {id_: letter.classification for id_, letter in letters.items()} == {"poison": classification}
        assert (letters["poison"].attempts, scene.diary.starts()["poison"]) == (2, 2)
        assert_nobody_else_was_charged(scene)


def test_in_async_a_message_that_stops_the_loop_is_found_out(lab: Lab) -> None:
    with Scene(lab, style="async", max_attempts=LIMIT, concurrency=20) as scene:
        neighbours = scene.healthy(19, do="wait", how="open")
        with scene.consumer() as consumer:
            scene.diary.wait_for_start(*neighbours)
            scene.publish({"poison": {"do": "stop_the_loop"}})
            scene.diary.wait_for_start("poison")
            scene.open_gate("open")
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(neighbours)
        assert set(scene.letters()) == {"poison"}
        assert scene.diary.starts()["poison"] <= LIMIT + 1
        assert_nobody_else_was_charged(scene)


def test_in_async_a_blocked_loop_cannot_block_the_consumer_too(lab: Lab) -> None:
    with Scene(lab, style="async", max_attempts=1, concurrency=20, timeout=1) as scene:
        with scene.consumer() as consumer:
            scene.publish({"poison": {"do": "loop"}})
            scene.diary.wait_for_start("poison")
            large = [f"large-{n}" for n in range(15)]
            for id_ in large:  # one by one: together they are more than fits into the socket of a worker that does not read
                scene.publish({id_: {"filling": "x" * 100_000}})
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(large)
        assert scene.letters()["poison"].classification == "timeout"
        assert_nobody_else_was_charged(scene)


def test_in_async_a_message_that_keeps_the_loop_busy_costs_no_neighbour_its_time(lab: Lab) -> None:
    with Scene(lab, style="async", concurrency=10, timeout=1) as scene:
        with scene.consumer() as consumer:
            neighbours = scene.healthy(5, do="sleep", how=0.5)
            scene.diary.wait_for_start(*neighbours)
            scene.publish({"busy": {"do": "block", "how": 1.2}})
            scene.diary.wait_for_done([*neighbours, "busy"])
        assert not consumer.said("failed in attempt")
        assert scene.diary.starts() == dict.fromkeys([*neighbours, "busy"], 1)


@pytest.mark.parametrize("action", ["segfault", "exit", "die"])
def test_with_threads_only_the_one_that_took_them_all_down_is_dead_lettered(lab: Lab, action: str) -> None:
    with Scene(lab, max_attempts=LIMIT, concurrency=4, threads=4) as scene:
        neighbours = scene.healthy(3, do="wait", how="open")
        with scene.consumer() as consumer:
            scene.diary.wait_for_start(*neighbours)
            workers = set(consumer.workers())
            scene.publish({"poison": {"do": action}})
            wait_until(lambda: workers - set(consumer.workers()), lambda: "The poison took no worker down")
            scene.open_gate("open")
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(neighbours)
        letters = scene.letters()
        assert {id_: letter.classification for id_, letter in letters.items()} == {"poison": "crash"}
        assert scene.diary.starts()["poison"] <= LIMIT + 1
        assert scene.diary.starts() - scene.diary.done() == {"poison": scene.diary.starts()["poison"]} | dict.fromkeys(
            neighbours, 1
        )
        assert_nobody_else_was_charged(scene)


def test_with_threads_a_message_over_its_limit_is_charged_and_the_others_are_not(lab: Lab) -> None:
    with Scene(lab, max_attempts=2, concurrency=4, threads=4, timeout=1) as scene:
        with scene.consumer() as consumer:
            scene.publish({"poison": {"do": "loop"}})
            scene.diary.wait_for_start("poison")
            neighbours = scene.healthy(3, do="wait", how="open")
            scene.diary.wait_for_start(*neighbours)
            consumer.wait_for_line("'poison'", "failed in attempt 1")
            scene.open_gate("open")
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(neighbours)
        letters = scene.letters()
        assert {id_: letter.classification for id_, letter in letters.items()} == {"poison": "timeout"}
        assert_nobody_else_was_charged(scene)


def assert_nobody_else_was_charged(scene: Scene) -> None:
    charged = {entry.id for entry in scene.diary.entries("start") if entry.id != "poison" and entry.attempt > 1}
    assert not charged, f"neighbours were charged: {charged}"
