"""What a message does to its worker convicts no other, an ordinary failure costs no worker, and nothing is left over."""

from collections import Counter
from typing import Any

import pytest

from unpoison.testing.isolation import processes
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab, Trait, trait

styles = pytest.mark.parametrize("style", ["sync", "threads", "async"])


def options(style: str) -> dict[str, Any]:
    """Everything in one worker, so that all of them are neighbours."""
    return {"sync": {"concurrency": 1}, "threads": {"concurrency": 3, "threads": 3}, "async": {"concurrency": 3}}[style]


def scene_of(lab: Lab, style: str, **others: Any) -> Scene:
    return Scene(lab, style="async" if style == "async" else "sync", **options(style), **others)


@styles
@pytest.mark.parametrize(
    ("damage", "argument", "innocent", "named", "limit"),
    [
        ("close_stdout", None, "speak", "sys.stdout", 5),
        ("close_stdout", None, "speak", "sys.stdout", 1),
        ("close_descriptor", 1, "speak", "descriptor 1", 2),
        ("change_folder", None, "stay_home", "working directory", 5),
        ("change_folder", None, "stay_home", "working directory", 1),
    ],
)
def test_a_damaged_worker_convicts_nobody(
    lab: Lab, style: str, damage: str, argument: Any, innocent: str, named: str, limit: int
) -> None:
    with scene_of(lab, style, max_attempts=limit) as scene:
        others = scene.healthy(20, "before", do=innocent)
        scene.publish({"guilty": {"do": damage, "how": argument}})
        others += scene.healthy(40, "after", do=innocent)
        consumer = scene.drained()
        assert scene.letters() == {}
        assert set(scene.diary.done()) == {"guilty", *others}
        again = {id_ for id_, starts in scene.diary.starts().items() if starts > 1}
        assert not again or max(scene.diary.starts().values()) <= limit + 1
        told = consumer.said("was damaged by one of its messages", named)
        assert told, consumer.text()[-4000:]
        assert any("'guilty'" in line.message for line in told)


@pytest.mark.parametrize("action", ["run_out", "run_out_of_descriptors"])
def test_what_speaks_against_the_process_is_looked_at_again_in_a_fresh_worker(lab: Lab, action: str) -> None:
    with Scene(lab, max_attempts=2, concurrency=1) as scene:
        others = scene.healthy(10)
        scene.publish({"once": {"do": [action, "nothing"]}, "always": {"do": action}})
        others += scene.healthy(10, "after")
        scene.drained()
        assert set(scene.letters()) == {"always"}
        assert set(scene.diary.done()) == {"once", *others}
        starts = scene.diary.entries("start")
        for id_ in ("once", "always"):
            first, second = [entry.worker for entry in starts if entry.id == id_]
            assert [entry.id for entry in starts if entry.worker == second] == [id_], "the second start was not in a fresh worker"
            assert first != second


@styles
def test_an_ordinary_failure_costs_no_worker(lab: Lab, style: str) -> None:
    with scene_of(lab, style, max_attempts=2) as scene:
        for n in range(12):  # with a success now and then: a long run of failures is another matter
            scene.publish({f"failing-{n}": {"do": "raise"}, f"invalid-{n}": {"do": "give_up"}})
            scene.healthy(1, f"fine-{n}")
        scene.drained()
        assert len(scene.letters()) == 24
        starts = scene.diary.starts()
        assert {starts[f"failing-{n}"] for n in range(12)} == {2}
        assert len({entry.worker for entry in scene.diary.entries("start")}) == 1


def test_in_async_a_time_limit_that_only_cancelled_a_task_costs_no_worker(lab: Lab) -> None:
    with Scene(lab, style="async", max_attempts=2, concurrency=3, timeout=0.2) as scene:
        scene.publish({f"late-{n}": {"do": "sleep", "how": 1000} for n in range(3)})
        fine = scene.healthy(5)
        scene.drained()
        assert Counter(letter.classification for letter in scene.letters().values()) == {"timeout": 3}
        assert set(scene.diary.done()) == set(fine)
        assert len({entry.worker for entry in scene.diary.entries("start")}) == 1


def test_a_worker_in_which_one_message_after_the_other_fails_is_replaced_but_not_for_ever(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, concurrency=1) as scene:
        scene.publish({f"failing-{n}": {"do": "give_up"} for n in range(200)})
        consumer = scene.drained()
        assert len(scene.letters()) == 200
        replaced = consumer.said("is replaced: the last")
        assert 2 <= len(replaced) <= 3  # after 20, 40 and 80 failures, or more where those in hand ended as well
        workers = {entry.worker for entry in scene.diary.entries("start")}
        assert len(workers) - len(replaced) in (0, 1)  # 0 if the last one was replaced after the last message


@pytest.mark.parametrize("style", ["threads", "async"])
def test_a_message_that_needs_a_fresh_worker_waits_for_no_other_and_none_waits_for_it(lab: Lab, style: str) -> None:
    with scene_of(lab, style, max_attempts=3) as scene, scene.consumer():
        scene.publish({"slow": {"do": "wait", "how": "first"}})
        scene.diary.wait_for_start("slow")
        scene.publish({"suspicious": {"do": ["run_out", "wait"], "how": "second"}})
        scene.diary.wait_for_starts("suspicious", 2)  # beside the worker in which the slow one still runs
        quick = scene.healthy(10)
        scene.diary.wait_for_done(quick)
        assert set(scene.diary.done()) == set(quick)
        scene.open_gate("first")
        scene.open_gate("second")
        scene.diary.wait_for_done(["slow", "suspicious"])


def test_what_handlers_change_in_every_worker_is_their_habit_and_left_alone(lab: Lab) -> None:
    with Scene(lab, concurrency=2) as scene, scene.consumer() as consumer:
        every: list[str] = []
        while not consumer.said("change the environment of their workers"):
            every += scene.healthy(10, f"batch-{len(every)}", do="change_environment")
            scene.diary.wait_for_done(every)
            assert len(every) < 1000, consumer.text()[-4000:]
        every += scene.healthy(200, "afterwards", do="change_environment")
        scene.diary.wait_for_done(every)
        assert len(consumer.said("change the environment of their workers")) == 1
        assert len(consumer.said("was damaged by one of its messages")) <= 2
    assert scene.letters() == {}


# Large bodies, and hundreds of dead workers, leave the consumer as it was: no memory, no descriptor, no process is left over.


MIB = 1024 * 1024
DEATHS = 200


@trait(Trait.SILENT)
def test_a_gibibyte_of_large_bodies_stays_within_the_memory_budget(lab: Lab) -> None:
    count, size = 200, 5 * MIB
    with Scene(lab, style="raw", concurrency=2) as scene:
        quick = scene.healthy(1000)  # by these the consumer learns that it may hold hundreds ready
        large = [f"large-{n}" for n in range(count)]
        for n in range(0, count, 20):
            scene.publish(dict.fromkeys(large[n : n + 20], b"x" * size))
        with scene.consumer() as consumer:
            scene.diary.wait_for_done([*quick, *large])
            peak = processes.peak_memory(consumer.pid)
        assert scene.diary.starts() == dict.fromkeys([*quick, *large], 1)
        assert {entry.note for entry in scene.diary.entries("start") if entry.id in large} == {str(size)}
        assert peak < 256 * MIB, f"the consumer needed {peak // MIB} MiB"


def test_hundreds_of_dead_workers_leave_no_descriptor_and_no_zombie(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, concurrency=2) as scene:
        first = scene.healthy(20, "first")
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(first)
            processes.expect_children(consumer.pid, 4)
            template = processes.template_of(consumer.pid)
            before = (processes.descriptors(consumer.pid), processes.descriptors(template))
            scene.publish({f"poison-{n}": {"do": ["exit", "segfault"][n % 2]} for n in range(DEATHS)})
            last = scene.healthy(20, "last")
            scene.diary.wait_for_done(last)
            scene.wait_for_dead(DEATHS)
            processes.expect_children(consumer.pid, 4)
            processes.expect_no_zombie(consumer.pid)
            assert processes.template_of(consumer.pid) == template
            after = (processes.descriptors(consumer.pid), processes.descriptors(template))
            # A client may have opened a connection or two since; what a death leaves behind would be there hundreds of times.
            few = 10
            assert after[0] <= before[0] + few, f"descriptors of the consumer were {before[0]} and are {after[0]}"
            assert after[1] <= before[1] + few, f"descriptors of the template were {before[1]} and are {after[1]}"
