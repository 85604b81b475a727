"""User code runs in workers: what `on_worker_start` opens, hooks, classifiers, policies. If it fails, no consumer is hurt."""

import signal
from pathlib import Path

import pytest

from unpoison.testing.isolation import processes
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.isolation.scene import SCRIPTED_APP, Scene
from unpoison.testing.lab import Lab

MIB = 1024 * 1024
WITH_HOOKS = "unpoison.testing.isolation.scripted_app_with_hooks:app"


def test_on_worker_start_and_stop_run_in_every_worker(lab: Lab) -> None:
    with Scene(lab, app=WITH_HOOKS, settings={"recycle_messages": 10}) as scene:
        ids = scene.healthy(60)
        scene.drained()
        starts, stops = ([entry.worker for entry in scene.diary.entries(what)] for what in ("worker-start", "worker-stop"))
        workers = {entry.worker for entry in scene.diary.entries("start")}
        assert len(workers) >= 6, "each was to be replaced after ten messages"
        assert workers <= set(starts)
        assert sorted(starts) == sorted(stops)
        assert len(set(starts)) == len(starts)
        assert scene.diary.starts() == dict.fromkeys(ids, 1)
        first = {entry.worker: entry.what for entry in reversed(scene.diary.entries())}
        assert {first[worker] for worker in workers} == {"worker-start"}


@pytest.mark.parametrize("problem", ["raise", "crash", "hang"])
def test_an_on_worker_start_that_fails_charges_no_message_and_is_said_once(lab: Lab, problem: str) -> None:
    with Scene(lab, app=WITH_HOOKS, settings={"start_timeout": 0.5}, also={"start": problem}) as scene:
        ids = scene.healthy(5)
        with scene.consumer() as consumer:
            consumer.wait_for_line("could not start")
            scene.diary.wait_for_worker_starts(4)  # a second round of them was tried
            assert scene.diary.starts() == {}
            said = consumer.said("could not start")
            scene.open_gate("healed")
            scene.diary.wait_for_done(ids)
        assert len(said) == 1
        expected = {"raise": "RuntimeError: the pool cannot be opened", "crash": "SIGSEGV", "hang": "took more than 0.5 s"}
        assert expected[problem] in said[0].message
        assert {(entry.attempt, entry.returned) for entry in scene.diary.entries("start")} == {(1, False)}
        assert scene.diary.starts() == dict.fromkeys(ids, 1)


def test_an_on_worker_stop_that_hangs_keeps_no_worker_for_ever(lab: Lab) -> None:
    with Scene(lab, app=WITH_HOOKS, settings={"recycle_messages": 5}, also={"stop": "hang"}, concurrency=1) as scene:
        ids = scene.healthy(20)
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(ids)
            processes.expect_children(consumer.pid, 3, patience=20)  # the template, one worker and a spare one


def test_workers_are_replaced_once_they_have_grown(lab: Lab) -> None:
    with Scene(lab, settings={"recycle_memory": 120 * MIB}, concurrency=1) as scene:
        for n in range(4):
            scene.publish({f"large-{n}": {"do": "allocate", "how": 150}})
            scene.healthy(3, f"small-{n}")
        scene.drained()
        large = [entry.worker for entry in scene.diary.entries("start") if entry.id.startswith("large")]
        assert len(set(large)) == 4
        assert set(scene.diary.starts().values()) == {1}


def test_workers_are_the_kernels_first_choice_and_the_consumer_is_not(lab: Lab) -> None:
    with Scene(lab) as scene, scene.consumer() as consumer:
        ids = scene.healthy(1)
        scene.diary.wait_for_done(ids)
        assert _oom_score(consumer.pid) < 1000

        def all_are_first() -> bool:
            """A spare worker that was just forked needs a moment to say so."""
            scores = [_oom_score(pid) for pid in consumer.workers()]
            return len(scores) >= 2 and set(scores) == {1000}

        wait_until(all_are_first, lambda: f"{[_oom_score(pid) for pid in consumer.workers()]} are the scores of workers")


def _oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


IMPORTS = {
    "raise": "RuntimeError: the settings are missing",
    "exit": "SystemExit",
    "crash": "SIGSEGV",
    "hang": "took more than 0.5 s",
    "leave": "exit code 3",
}


@pytest.mark.parametrize(("problem", "words"), IMPORTS.items(), ids=IMPORTS)
def test_an_app_that_fails_hangs_or_crashes_while_it_is_imported_is_one_clear_error(lab: Lab, problem: str, words: str) -> None:
    with Scene(lab, also={"import": problem, "start_timeout": 0.5 if problem == "hang" else 30}) as scene:
        with scene.consumer() as consumer:
            assert consumer.wait() == 1
        (line,) = [line for line in consumer.log() if line.level == "CRITICAL"]
        assert words in line.message
        assert SCRIPTED_APP in line.message
        assert "\n" not in line.message.strip()


def test_a_consumer_that_is_killed_while_its_app_is_imported_leaves_no_process(lab: Lab) -> None:
    with Scene(lab, also={"import": "hang"}) as scene:
        for _ in range(3):
            with scene.consumer() as consumer:
                wait_until(lambda: processes.template_of(consumer.pid), lambda: "there is no template")
                consumer.send(signal.SIGKILL)
                consumer.wait()
            processes.expect_nobody(scene.plan.token)


def test_a_template_that_cannot_be_replaced_is_tried_again_while_workers_go_on(lab: Lab) -> None:
    with Scene(lab, also={"import": "deploy"}, max_attempts=3, concurrency=2) as scene:
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(scene.healthy(5, "before"))
            scene.open_gate("broken")
            scene.publish({"killer": {"do": ["kill_template_and_die", "nothing"]}})
            said = consumer.wait_for_line("could not start").message
            assert "RuntimeError: half of the new version is there" in said
            scene.diary.wait_for_done(scene.healthy(5, "meanwhile"))
            scene.close_gate("broken")
            scene.diary.wait_for_done(["killer"])
            scene.diary.wait_for_done(scene.healthy(5, "after"))
        assert scene.diary.starts()["killer"] == 2
        assert {entry.consumer for entry in scene.diary.entries()} == {consumer.pid}
        assert scene.letters() == {}


def test_an_app_that_starts_a_thread_on_import_still_isolates_and_says_how(lab: Lab) -> None:
    with Scene(lab, style="beside thread", max_attempts=2, concurrency=1) as scene:
        scene.publish({"poison": {"do": "segfault"}})
        ids = scene.healthy(10)
        consumer = scene.drained()
        assert {id_: letter.classification for id_, letter in scene.letters().items()} == {"poison": "crash"}
        assert scene.diary.starts() == {"poison": 2, **dict.fromkeys(ids, 1)}
        assert {entry.consumer for entry in scene.diary.entries()} == {consumer.pid}
        (line,) = consumer.said("Consuming")
        assert "the-thread-of-the-shop" in line.message
        assert "cannot be forked" in line.message
        assert {entry.note for entry in scene.diary.entries("threads")} == {"alive"}, "a forked worker has lost the thread"


def test_a_consumer_with_more_than_a_thousand_open_files_still_serves(lab: Lab) -> None:
    with Scene(lab, max_attempts=2, timeout=0.5, also={"descriptors": 1100}) as scene:
        scene.publish({"poison": {"do": "segfault"}, "stuck": {"do": "loop"}})
        ids = scene.healthy(20)
        scene.drained()
        assert set(scene.letters()) == {"poison", "stuck"}
        assert scene.diary.done() == dict.fromkeys(ids, 1)


# All user code runs in workers: hooks, classifiers, policies. What it does there changes no verdict and hurts no consumer.


def test_hooks_run_in_a_worker_once_for_each_verdict_after_it_was_settled(lab: Lab) -> None:
    with Scene(lab, app=WITH_HOOKS, max_attempts=3) as scene:
        scene.publish({"raising": {"do": "raise", "how": "no"}, "crashing": {"do": "segfault"}, "garbage": b"\xff"})
        ids = scene.healthy(10)
        consumer = scene.drained()
        for id_ in ("raising", "crashing"):
            retries = [entry for entry in scene.diary.entries("on_retry") if entry.id == id_]
            assert [(entry.attempt, entry.note) for entry in retries] == [(1, "0"), (2, "0")]
        dead = scene.diary.entries("on_dlq")
        assert sorted(entry.id for entry in dead) == ["crashing", "garbage", "raising"]
        assert all(int(entry.note.rpartition("letters: ")[2]) >= 1 for entry in dead), "a hook was called before the settle"
        notes = {entry.id: entry.note for entry in dead}
        assert notes["raising"].startswith("ConnectionError: no;")
        assert "SIGSEGV" in notes["crashing"]
        pids = {entry.worker for entry in scene.diary.entries() if entry.what in ("on_retry", "on_dlq")}
        assert consumer.pid not in pids
        assert {entry.consumer for entry in dead} == {consumer.pid}
        opened = {entry.worker for entry in scene.diary.entries("worker-start")}
        assert pids <= opened, "a hook ran where on_worker_start had not"
        assert set(scene.diary.done()) == set(ids)


@pytest.mark.parametrize("how", ["raise", "crash", "leave"])
@pytest.mark.parametrize("hook", ["on_retry", "on_dlq"])
def test_a_hook_that_raises_or_crashes_is_reported_and_changes_nothing(lab: Lab, hook: str, how: str) -> None:
    with Scene(lab, app=WITH_HOOKS, max_attempts=2, also={hook: how}) as scene:
        poisons = [f"poison-{n}" for n in range(3)]
        scene.publish({id_: {"do": "raise", "how": "no"} for id_ in poisons})
        ids = scene.healthy(10)
        consumer = scene.drained()
        assert {id_: letter.classification for id_, letter in scene.letters().items()} == dict.fromkeys(poisons, "transient")
        assert scene.diary.starts() == dict.fromkeys(poisons, 2) | dict.fromkeys(ids, 1)
        assert sorted(entry.id for entry in scene.diary.entries(hook)) == poisons
        assert len(consumer.said("A hook for message")) == 3
        assert {entry.consumer for entry in scene.diary.entries("start")} == {consumer.pid}


def test_a_hook_that_hangs_holds_up_no_message_and_no_stop(lab: Lab) -> None:
    with Scene(lab, app=WITH_HOOKS, max_attempts=1, also={"on_dlq": "hang"}) as scene:
        poisons = [f"poison-{n}" for n in range(3)]
        scene.publish({id_: {"do": "raise"} for id_ in poisons})
        ids = scene.healthy(10)
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(ids)
            for id_ in poisons:
                consumer.wait_for_line(f"'{id_}'", "is a dead letter")
        assert set(scene.letters()) == set(poisons)
        assert "Traceback" not in consumer.text()


def test_classifiers_policies_and_should_retry_run_in_workers_and_decide(lab: Lab) -> None:
    with Scene(lab, app=WITH_HOOKS, max_attempts=4) as scene:
        scene.publish(
            {
                "told": {"do": "raise", "how": "classify me"},
                "own": {"do": "raise", "how": "of our own"},
                "refused": {"do": "raise", "how": "never again"},
                "policy": {"do": "time_out"},
                "plain": {"do": "raise", "how": "plain"},
            }
        )
        ids = scene.healthy(5)
        consumer = scene.drained()
        assert scene.diary.starts() == {"told": 1, "own": 1, "refused": 1, "policy": 1, "plain": 4, **dict.fromkeys(ids, 1)}
        letters = scene.letters()
        assert letters["told"].classification == "permanent"
        assert letters["own"].classification == "invalid"
        assert "Careful.classify_error said invalid" in letters["own"].rule
        assert "Careful.should_retry said no" in letters["refused"].rule
        assert "the policy for this exception" in letters["policy"].reason
        asked = [entry for what in ("classify", "classify_error", "should_retry") for entry in scene.diary.entries(what)]
        assert {entry.consumer for entry in asked} == {consumer.pid}, "user code ran in the consumer"
        assert {(entry.id, entry.attempt) for entry in scene.diary.entries("should_retry") if entry.id == "plain"} == {
            ("plain", attempt) for attempt in (1, 2, 3, 4)
        }


@pytest.mark.parametrize("asked", ["classify", "should_retry"])
def test_a_classifier_that_crashes_costs_its_own_message_and_no_other(lab: Lab, asked: str) -> None:
    with Scene(lab, app=WITH_HOOKS, max_attempts=2, also={asked: "crash"}) as scene:
        scene.publish({"poison": {"do": "raise"}})
        ids = scene.healthy(20)
        consumer = scene.drained()
        assert {id_: letter.classification for id_, letter in scene.letters().items()} == {"poison": "crash"}
        assert scene.diary.starts() == {"poison": 2, **dict.fromkeys(ids, 1)}
        assert {entry.consumer for entry in scene.diary.entries("start")} == {consumer.pid}
