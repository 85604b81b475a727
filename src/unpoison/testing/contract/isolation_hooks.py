"""All user code runs in workers: hooks, classifiers, policies. What it does there changes no verdict and hurts no consumer."""

import pytest

from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

WITH_HOOKS = "unpoison.testing.isolation.poisons_with_hooks:app"


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
