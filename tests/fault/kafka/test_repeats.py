"""On Kafka a message that kills its consumer again and again has few of its neighbours run again."""

import pytest

from unpoison.testing.isolation.scene import Scene

pytestmark = pytest.mark.long

MOST = 36
"""Of sixty neighbours. With the slow start it was 10 to 12 in three runs, without it 38 in both of two."""


def test_a_message_that_kills_its_consumer_has_few_of_sixty_neighbours_run_again(lab):
    with Scene(lab, max_attempts=3) as scene:
        healthy = scene.healthy(30, "before")
        scene.publish({"poison": {"do": "kill_consumer"}})
        healthy += scene.healthy(30, "after")
        scene.supervised()
        starts = scene.diary.starts()
        assert set(scene.letters()) == {"poison"}
        assert set(scene.diary.done()) == set(healthy)
        assert sum(starts[id_] - 1 for id_ in healthy) <= MOST
