"""A thousand random kills, for each way in which workers run messages."""

import pytest

from tests.contract.labs import SQLiteLab
from unpoison.testing.isolation.scene import LIMIT, Chaos, Scene, assert_everything_is_accounted_for

pytestmark = pytest.mark.proof


@pytest.fixture
def lab(tmp_path):
    with SQLiteLab(tmp_path) as lab:
        yield lab


@pytest.mark.parametrize(
    ("style", "kills", "options"),
    [
        ("sync", 1_000, {"concurrency": 3}),
        ("async", 300, {"concurrency": 8}),
        ("threads", 300, {"concurrency": 8, "threads": 4}),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_random_kills_lose_nothing_and_dead_letter_no_innocent(lab, seed, style, kills, options):
    with Scene(lab, style=style, max_attempts=LIMIT, timeout=1, **options) as scene:
        chaos = Chaos(scene, seed, consumers=3)
        chaos.reign(kills)
        assert_everything_is_accounted_for(scene, chaos)
        print(f"{style}, seed {seed}: {dict(chaos.killed)} killed, {len(chaos.published)} messages, all accounted for")
