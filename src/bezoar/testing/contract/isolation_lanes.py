"""With several messages in one worker, as tasks or threads, the guilty one is still told apart from its neighbours."""

import pytest

from bezoar.testing.isolation.scene import Scene
from bezoar.testing.lab import Lab

LIMIT = 3


@pytest.mark.parametrize(
    ("deed", "classification"),
    [("segfault", "crash"), ("exit", "crash"), ("die", "crash"), ("loop", "timeout"), ("ignore_cancellation", "timeout")],
)
def test_in_async_one_of_fifty_that_crashes_or_blocks_the_loop_is_charged_alone(
    lab: Lab, deed: str, classification: str
) -> None:
    with Scene(lab, style="async", max_attempts=LIMIT, concurrency=50, timeout=5) as scene:
        scene.changed(timeout=0.5)
        neighbours = scene.healthy(49, do="wait", **{"with": "open"})
        with scene.consumer() as consumer:
            scene.open_gate("open") if deed == "ignore_cancellation" else None
            scene.publish({"poison": {"do": deed}})
            scene.diary.wait_for_start("poison")
            scene.open_gate("open")
            consumer.wait_for_line("'poison'", "is a dead letter")
            scene.diary.wait_for_done(neighbours)
        letters = scene.letters()
        assert {id_: letter.classification for id_, letter in letters.items()} == {"poison": classification}
        assert letters["poison"].attempts == LIMIT
        assert scene.diary.starts()["poison"] == LIMIT
        assert {entry.attempt for entry in scene.diary.entries("start") if entry.id != "poison"} == {1}, "a neighbour was charged"
