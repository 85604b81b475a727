"""Ten thousand dead workers leave nothing behind in the consumer and its template: no descriptor, no zombie, no memory."""

import pytest

from tests.contract.labs import SQLiteLab
from unpoison.testing.isolation import processes
from unpoison.testing.isolation.scene import Scene

pytestmark = pytest.mark.proof

MIB = 1024 * 1024
DEEDS = ("exit", "segfault", "abort", "exit")


@pytest.fixture
def lab(tmp_path):
    with SQLiteLab(tmp_path) as lab:
        yield lab


def deaths(scene, first, last):
    scene.publish({f"poison-{n}": {"do": DEEDS[n % len(DEEDS)]} for n in range(first, last)})
    scene.wait_for_dead(last, patience=1800)


def measured(consumer):
    template = processes.template_of(consumer.pid)
    processes.expect_children(consumer.pid, 4)
    processes.expect_no_zombie(consumer.pid)
    return {
        "descriptors of the consumer": processes.descriptors(consumer.pid),
        "descriptors of the template": processes.descriptors(template),
        "MiB of the consumer": processes.memory(consumer.pid) // MIB,
        "MiB of the template": processes.memory(template) // MIB,
    }


def test_ten_thousand_worker_deaths_leave_nothing_behind(lab):
    with Scene(lab, max_attempts=1, concurrency=2) as scene, scene.consumer() as consumer:
        deaths(scene, 0, 1_000)
        template = processes.template_of(consumer.pid)
        before = measured(consumer)
        deaths(scene, 1_000, 10_000)
        healthy = scene.healthy(100)
        scene.diary.wait_for_done(healthy)
        after = measured(consumer)
        print(f"after 1,000 deaths {before}, after 10,000 {after}")
        assert processes.template_of(consumer.pid) == template
        assert all(after[name] <= before[name] + (4 if name.startswith("MiB") else 0) for name in before), (before, after)
        assert scene.diary.starts().total() == 10_100
