"""Large bodies, and hundreds of dead workers, leave the consumer as it was: no memory, no descriptor, no process is left over."""

from unpoison.testing.isolation import tree
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab, Trait, trait

MIB = 1024 * 1024
DEATHS = 200


@trait(Trait.SILENT)
def test_a_gibibyte_of_large_bodies_stays_within_the_memory_budget(lab: Lab) -> None:
    count, size = 200, 5 * MIB
    with Scene(lab, app="unpoison.testing.isolation.raw:app", concurrency=2) as scene:
        quick = scene.healthy(1000)  # by these the consumer learns that it may hold hundreds ready
        large = [f"large-{n}" for n in range(count)]
        for n in range(0, count, 20):
            scene.publish(dict.fromkeys(large[n : n + 20], b"x" * size))
        with scene.consumer() as consumer:
            scene.diary.wait_for_done([*quick, *large])
            peak = tree.peak_memory(consumer.pid)
        assert scene.diary.starts() == dict.fromkeys([*quick, *large], 1)
        assert {entry.note for entry in scene.diary.entries("start") if entry.id in large} == {str(size)}
        assert peak < 256 * MIB, f"the consumer needed {peak // MIB} MiB"


def test_hundreds_of_dead_workers_leave_no_descriptor_and_no_zombie(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, concurrency=2) as scene:
        first = scene.healthy(20, "first")
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(first)
            tree.expect_children(consumer.pid, 4)
            template = tree.template_of(consumer.pid)
            before = (tree.descriptors(consumer.pid), tree.descriptors(template))
            scene.publish({f"poison-{n}": {"do": ["exit", "segfault"][n % 2]} for n in range(DEATHS)})
            last = scene.healthy(20, "last")
            scene.diary.wait_for_done(last)
            scene.wait_for_dead(DEATHS)
            tree.expect_children(consumer.pid, 4)
            tree.expect_no_zombie(consumer.pid)
            assert tree.template_of(consumer.pid) == template
            after = (tree.descriptors(consumer.pid), tree.descriptors(template))
            assert after <= before, f"descriptors of consumer and template were {before} and are {after}"
