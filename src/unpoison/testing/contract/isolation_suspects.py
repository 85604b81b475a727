"""What came back from consumers that vanished is cleared by running, and convicted only by its own starts, alone."""

import signal

import pytest

from unpoison.testing.isolation.scene import LIMIT, Chaos, Scene, assert_everything_is_accounted_for
from unpoison.testing.lab import Lab


def test_two_messages_that_kill_only_together_are_both_done(lab: Lab) -> None:
    with Scene(lab, max_attempts=5, concurrency=2) as scene:
        scene.publish({"one": {"do": "die_if_beside", "how": "two"}, "two": {"do": "die_if_beside", "how": "one"}})
        consumers = scene.supervised()
        assert len(consumers) > 1, "they never met"
        assert (set(scene.diary.done()), scene.letters()) == ({"one", "two"}, {})


def test_a_fleet_killed_at_once_costs_less_than_a_third_of_its_work_again(lab: Lab) -> None:
    with Scene(lab, max_attempts=5, concurrency=4) as scene:
        ids = scene.healthy(300, do="block", how=0.01)
        fleet = [scene.consumer() for _ in range(3)]
        scene.diary.wait_for_done(ids[:100])
        for consumer in fleet:
            consumer.send(signal.SIGKILL)
        for consumer in fleet:
            consumer.wait()
        scene.supervised(3)
        assert set(scene.diary.done()) == set(ids)
        assert sum(scene.diary.starts().values()) <= 1.3 * len(ids)
        assert scene.letters() == {}


def test_an_innocent_slow_message_whose_consumer_is_killed_twice_ends_done(lab: Lab) -> None:
    with Scene(lab, max_attempts=3) as scene:
        scene.publish({"slow": {"do": "wait", "how": "open"}})
        healthy = scene.healthy(20)
        for n in (1, 2):
            with scene.consumer() as consumer:
                scene.diary.wait_for_starts("slow", n)
                consumer.send(signal.SIGKILL)
                consumer.wait()
        scene.open_gate("open")
        scene.drained()
        assert set(scene.diary.done()) == {"slow", *healthy}
        assert scene.diary.starts()["slow"] == 3
        assert scene.letters() == {}


def test_a_replayed_killer_never_runs_beside_another_message(lab: Lab) -> None:
    sources = ["orders", "invoices"]
    with Scene(lab, max_attempts=2, concurrency=3, also={"sources": sources}) as scene:
        scene.publish({"killer": {"do": "kill_consumer_and_tell"}})
        scene.supervised()
        assert scene.letters()["killer"].classification == "lost"
        before = len(scene.diary.entries("killing"))
        ids = scene.healthy(60, "orders", do="block", how=0.02)
        ids += scene.healthy(60, "invoices", source="invoices", do="block", how=0.02)
        scene.replay()
        scene.supervised()
        killings = scene.diary.entries("killing")[before:]
        assert killings, "the replayed message was never started"
        assert [entry.note for entry in killings] == [""] * len(killings), "something ran beside it"
        assert set(scene.diary.done()) == set(ids)
        again = [letter for letter in scene.all_letters() if letter.message.id == "killer"]
        assert [(letter.state, letter.replays) for letter in again] == [("replayed", 0), ("dead", 1)]


def test_a_suspect_that_waits_for_a_hung_message_to_end_does_not_hold_all_others(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, concurrency=2) as scene:
        scene.publish({"suspect": {"do": ["exit", "nothing"]}})
        scene.drained()
        with scene.consumer():
            scene.publish({"hung": {"do": "wait", "how": "open"}})
            scene.diary.wait_for_start("hung")
            scene.replay()
            scene.diary.wait_for_done(scene.healthy(10, "meanwhile"))
            assert scene.diary.starts()["suspect"] == 1, "it ran beside another message"
            scene.open_gate("open")
            scene.diary.wait_for_done(["hung", "suspect"])
        assert scene.depth().empty


# Workers, templates and consumers killed at random under load: no innocent is dead-lettered and nothing is lost.


KILLS = 30


@pytest.mark.parametrize("seed", [1])
def test_random_kills_under_load_lose_nothing_and_dead_letter_no_innocent(lab: Lab, seed: int) -> None:
    with Scene(lab, max_attempts=LIMIT, concurrency=2, timeout=1) as scene:
        chaos = Chaos(scene, seed)
        chaos.reign(KILLS)
        assert_everything_is_accounted_for(scene, chaos)
        assert {"worker", "template", "consumer"} <= set(chaos.killed)
