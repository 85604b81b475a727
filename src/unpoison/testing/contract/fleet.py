"""Consumers that share a store know of outages and bad deploys together, also after a restart, and can do without the store."""

import sqlite3
import time
from contextlib import closing

from unpoison.testing.contract.flow_control import SLACK, expect_nobody_paid
from unpoison.testing.isolation.flow_scene import BREAKER, FlowScene
from unpoison.testing.lab import Lab, Trait, trait

EXCHANGE = 2.0
"""Seconds within which a consumer hears of what others know."""


def shared(lab: Lab, **also: bool) -> FlowScene:
    """A store of its own, wherever the messages are."""
    return FlowScene(lab, settings={"store": f"sqlite:///{lab.folder}/store.db"}, also=also)


@trait(Trait.TAKEOVER | Trait.SEVERAL_CONSUMERS)
def test_a_fleet_probes_as_one_and_a_consumer_that_is_started_anew_knows_of_the_outage(lab: Lab) -> None:
    with shared(lab) as scene, scene.consumer() as one, scene.consumer() as other:
        ids = scene.healthy(8, "before")
        scene.diary.wait_for_done(ids)
        scene.dependency.refuse()
        ids += scene.healthy(300, "during")  # each of them needs sixty that fail
        for consumer in (one, other):
            consumer.wait_for_line("is paused")
        scene.kill(other)
        with scene.consumer() as third:
            third.wait_for_line("is paused", f"{scene.dependency.address} is down")
            time.sleep(7 * BREAKER.longest_probe)
            recovered = scene.dependency.work()
            probes = scene.starts_between(recovered - 5 * BREAKER.longest_probe, recovered)
            assert 2 <= len(probes) <= 6, probes
            assert scene.first_done_after(recovered) - recovered <= BREAKER.longest_probe + EXCHANGE + SLACK
            scene.diary.wait_for_done(ids)
            scene.wait_until_empty()
        expect_nobody_paid(scene, ids)


def test_a_source_that_a_bad_deploy_has_paused_stays_so_until_there_is_a_new_version(lab: Lab) -> None:
    with shared(lab) as scene:
        ids = scene.healthy(150, calls=False)
        scene.redeployed("1", is_broken=True)
        with scene.consumer() as consumer:
            consumer.wait_for_line("is paused", "were to become dead letters")
            scene.wait_until_ended(consumer)
        started = scene.diary.starts().total()
        with scene.consumer() as consumer:
            consumer.wait_for_line("is paused", "were to become dead letters")
            assert scene.diary.starts().total() == started, "the same version began again"
        scene.redeployed("2")
        with scene.consumer():
            scene.wait_until_empty()
        assert set(scene.letters()) | set(scene.diary.done()) == set(ids)
        assert len(scene.letters()) <= 60


def test_a_store_that_is_cut_off_stops_no_message(lab: Lab) -> None:
    with shared(lab) as scene, scene.consumer() as consumer:
        scene.diary.wait_for_done(scene.healthy(5, "before"))
        with closing(sqlite3.connect(lab.folder / "store.db", isolation_level=None)) as lock:
            lock.execute("begin exclusive")
            scene.wait_for_event(consumer, "store-away")
            scene.diary.wait_for_done(scene.healthy(50, "without"))
            lock.execute("rollback")
        scene.wait_for_event(consumer, "store-back")
        assert [line.event for line in consumer.log() if line.level == "WARNING"] == ["store-away", "store-back"]
