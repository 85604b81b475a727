"""Workers, templates and consumers killed at random under load: no innocent is dead-lettered and nothing is lost."""

import pytest

from unpoison.testing.isolation.chaos import LIMIT, Chaos, assert_everything_is_accounted_for
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

KILLS = 30


@pytest.mark.parametrize("seed", [1])
def test_random_kills_under_load_lose_nothing_and_dead_letter_no_innocent(lab: Lab, seed: int) -> None:
    with Scene(lab, max_attempts=LIMIT, concurrency=2, timeout=1) as scene:
        chaos = Chaos(scene, seed)
        chaos.reign(KILLS)
        assert_everything_is_accounted_for(scene, chaos)
        assert {"worker", "template", "consumer"} <= set(chaos.killed)
