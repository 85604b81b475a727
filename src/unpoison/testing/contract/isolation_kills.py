"""A message that takes its whole consumer down is found out, and none of its neighbours pays for it."""

import pytest

from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab, Trait, trait

GARBAGE = bytes(range(256))


def test_a_message_that_kills_every_process_of_its_consumer_is_dead_lettered_as_lost(lab: Lab) -> None:
    with Scene(lab, max_attempts=3) as scene:
        healthy = scene.healthy(2, "before")
        scene.publish({"poison": {"do": "kill_all"}, "garbage": GARBAGE})
        healthy += scene.healthy(3, "after")
        scene.supervised()
        assert 2 <= scene.diary.starts()["poison"] <= 4
        assert set(scene.diary.done()) == set(healthy)
        letters = scene.letters()
        assert {id_: letter.classification for id_, letter in letters.items()} == {"poison": "lost", "garbage": "invalid"}
        assert (letters["poison"].body, letters["garbage"].body) == (b'{"do":"kill_all"}', GARBAGE)
        assert scene.depth().empty


@trait(Trait.PREFETCHED)
@pytest.mark.parametrize("consumers", [1, 3])
def test_a_message_that_kills_its_consumer_by_pid_hurts_none_of_a_hundred_prefetched_ones(lab: Lab, consumers: int) -> None:
    with Scene(lab, max_attempts=3) as scene:
        healthy = scene.healthy(400, "before")
        scene.publish({"poison": {"do": "kill_consumer"}, "garbage": GARBAGE})
        healthy += scene.healthy(400, "after")
        scene.supervised(consumers)
        assert 2 <= scene.diary.starts()["poison"] <= 4
        assert set(scene.diary.done()) == set(healthy)
        assert {id_: letter.classification for id_, letter in scene.letters().items()} == {"poison": "lost", "garbage": "invalid"}
        returned = [entry for entry in scene.diary.entries("start") if entry.returned and entry.id != "poison"]
        assert consumers > 1 or len(returned) >= 100, f"only {len(returned)} had been prefetched"
        assert scene.depth().empty


BY_TURNS = {
    "every-kind": ["kill_all", "raise", "die", "raise"],
    "raise-then-kill": ["raise", "kill_consumer"],
    "raise-twice-then-kill": ["raise", "raise", "kill_consumer", "kill_consumer", "kill_consumer", "kill_consumer"],
}


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_messages_that_raise_and_kill_by_turns_start_at_most_once_more_than_their_limit(lab: Lab, limit: int) -> None:
    with Scene(lab, max_attempts=limit) as scene:
        scene.publish({id_: {"do": actions} for id_, actions in BY_TURNS.items()})
        healthy = scene.healthy(5)
        scene.supervised()
        starts = scene.diary.starts()
        # Without atomic steps a consumer that is killed between copy and letting go leaves both, each with starts of its own.
        most = (limit + 1) * (1 if lab.is_atomic else 2)
        assert {id_: starts[id_] for id_ in BY_TURNS if not min(limit, 2) <= starts[id_] <= most} == {}
        assert max(entry.attempt for entry in scene.diary.entries("start")) <= limit
        assert set(scene.diary.done()) == set(healthy)
        assert set(scene.letters()) == set(BY_TURNS)
        assert scene.depth().empty


def test_a_message_that_alternates_alone_starts_at_most_once_more_than_its_limit(lab: Lab) -> None:
    with Scene(lab, max_attempts=3) as scene:
        scene.publish({"poison": {"do": BY_TURNS["every-kind"]}})
        healthy = scene.healthy(5)
        scene.supervised()
        assert 3 <= scene.diary.starts()["poison"] <= 4
        assert set(scene.diary.done()) == set(healthy)
        assert set(scene.letters()) == {"poison"}


def test_a_message_that_kills_its_consumer_is_told_about_in_its_letter(lab: Lab) -> None:
    with Scene(lab, max_attempts=3) as scene:
        scene.publish({"poison": {"do": "kill_consumer"}})
        consumers = scene.supervised()
        letter = scene.letters()["poison"]
        assert letter.attempts == 3
        assert "vanished" in letter.reason
        starts_alone = [past.error for past in letter.history[:2]]
        vanished = [f":{consumer.pid} and never ended" for consumer in consumers[2:4]]
        assert all(where in start for where, start in zip(vanished, starts_alone, strict=True)), letter.history


def test_what_a_handler_left_running_does_not_keep_messages_from_coming_back(lab: Lab) -> None:
    with Scene(lab, max_attempts=2) as scene:
        scene.publish({"poison": {"do": "leave_shell_and_kill_consumer"}})
        healthy = scene.healthy(5)
        scene.supervised()
        assert set(scene.diary.done()) == set(healthy)
        assert set(scene.letters()) == {"poison"}
        scene.close()  # the shell's child has no parent any more
