"""With several messages in one worker, as tasks or threads, the guilty one is still told apart from its neighbours."""

import pytest

from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

LIMIT = 3

GUILTY_TASKS = {
    "segfault": "crash",
    "exit": "crash",
    "die": "crash",
    "loop": "timeout",
    "ignore_cancellation": "timeout",
    "exit_in_a_task": "unknown",
}


@pytest.mark.parametrize(("deed", "classification"), GUILTY_TASKS.items(), ids=GUILTY_TASKS)
def test_in_async_one_of_fifty_that_crashes_or_blocks_the_loop_is_charged_alone(lab: Lab, deed: str, classification: str) -> None:
    with Scene(lab, style="async", max_attempts=2, concurrency=50, timeout=1.5) as scene:
        neighbours = scene.healthy(49, do="wait", how="open")
        with scene.consumer() as consumer:
            scene.diary.wait_for_start(*neighbours)
            scene.publish({"poison": {"do": deed}})
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


@pytest.mark.parametrize("deed", ["segfault", "exit", "die"])
def test_with_threads_only_the_one_that_took_them_all_down_is_dead_lettered(lab: Lab, deed: str) -> None:
    with Scene(lab, max_attempts=LIMIT, concurrency=4, threads=4) as scene:
        neighbours = scene.healthy(3, do="wait", how="open")
        with scene.consumer() as consumer:
            scene.diary.wait_for_start(*neighbours)
            workers = set(consumer.workers())
            scene.publish({"poison": {"do": deed}})
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
