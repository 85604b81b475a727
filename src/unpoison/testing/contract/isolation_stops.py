"""A planned stop charges no message, however it is asked for and however long a handler would still need."""

import os
import shutil
import signal
import subprocess
from typing import Any

import pytest

from unpoison.testing.isolation import processes
from unpoison.testing.isolation.processes import ConsumerProcess
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

STYLES: dict[str, dict[str, Any]] = {
    "sync": {"concurrency": 1},
    "threads": {"concurrency": 4, "threads": 4},
    "async": {"concurrency": 4},
}


def test_three_graceful_restarts_with_fifty_prefetched_messages_charge_nobody(lab: Lab) -> None:
    with Scene(lab, concurrency=1) as scene:
        ids = []
        handed_back = []
        for n in range(3):
            ids += scene.healthy(150, f"round-{n}-quick")  # by these the consumer learns to hold many ready
            scene.publish({f"slow-{n}": {"do": "wait", "how": f"slow-{n}"}})
            ids += [f"slow-{n}", *scene.healthy(70, f"round-{n}-behind")]
            with scene.consumer() as consumer:
                scene.diary.wait_for_start(f"slow-{n}")
                scene.let_everything_be_prefetched()
                consumer.send(signal.SIGTERM)
                handed_back.append(int(consumer.wait_for_line("Released", "not started").message.split()[1]))
                scene.open_gate(f"slow-{n}")
                assert consumer.wait() == 0
        scene.drained()
        assert max(handed_back) >= 50, f"never were fifty prefetched, only {handed_back}"
        assert_each_ran_once_uncharged(scene, ids)


def test_graceful_restarts_charge_neither_returned_nor_suspect_messages(lab: Lab) -> None:
    with Scene(lab, max_attempts=5) as scene:
        suspects = [f"suspect-{n}" for n in range(5)]
        scene.publish({id_: {"do": "wait", "how": id_} for id_ in suspects})
        scene.vanish()
        scene.vanish()
        returned = scene.healthy(50, "returned")
        scene.vanish(only=returned)
        seen: set[str] = set()
        for _ in suspects:
            with scene.consumer() as consumer:
                started = scene.diary.wait_for_another_start(suspects, seen)
                seen.add(started)
                consumer.send(signal.SIGTERM)
                consumer.wait_for_line("draining")
                scene.open_gate(started)
                assert consumer.wait() == 0
        scene.drained()
        assert scene.diary.starts() == dict.fromkeys([*suspects, *returned], 1)
        assert scene.letters() == {}
        attempts = {entry.id: entry.attempt for entry in scene.diary.entries("start")}
        assert {attempts[id_] for id_ in returned} == {1}
        assert {attempts[id_] for id_ in suspects} == {2}, "lost in company twice is held against it once, and nothing else is"


@pytest.mark.parametrize("style", STYLES)
def test_what_still_runs_when_the_grace_is_over_is_cut_off_and_not_charged(lab: Lab, style: str) -> None:
    with Scene(lab, style=style, settings={"grace": 0.3}, **STYLES[style]) as scene:
        scene.publish({"slow": {"do": "wait", "how": "never"}})
        with scene.consumer() as consumer:
            scene.diary.wait_for_start("slow")
            consumer.stop()
            assert consumer.said("Released", "cut off", "not charged")
        counters = scene.waiting()["slow"].counters
        assert (counters.attempts, counters.vanished, counters.losses, counters.interrupted) == (0, 0, 0, 1)


@pytest.mark.parametrize("style", STYLES)
def test_a_second_signal_ends_the_grace_at_once(lab: Lab, style: str) -> None:
    with Scene(lab, style=style, settings={"grace": 3600}, **STYLES[style]) as scene:
        scene.publish({"slow": {"do": "wait", "how": "never"}})
        with scene.consumer() as consumer:
            scene.diary.wait_for_start("slow")
            consumer.send(signal.SIGTERM)
            consumer.wait_for_line("draining")
            consumer.stop()
        counters = scene.waiting()["slow"].counters
        assert (counters.attempts, counters.vanished, counters.losses, counters.interrupted) == (0, 0, 0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_every_process_at_once_is_a_planned_stop(lab: Lab, number: signal.Signals) -> None:
    with Scene(lab, concurrency=2) as scene:
        scene.publish({"slow": {"do": "wait", "how": "open"}})
        with scene.consumer() as consumer:
            scene.diary.wait_for_start("slow")
            for pid in processes.alive(scene.plan.token):  # as systemd does: the whole control group, not only the process group
                os.kill(pid, number)
            consumer.wait_for_line("draining")
            scene.open_gate("open")
            assert consumer.wait() == 0
        assert_each_ran_once_uncharged(scene, ["slow"])
        assert scene.depth().empty


def test_five_deploys_shorter_than_the_handler_charge_nobody_and_say_so(lab: Lab) -> None:
    with Scene(lab, settings={"grace": 0}, concurrency=1, max_attempts=2) as scene:
        scene.publish({"long": {"do": ["wait"] * 5 + ["nothing"], "how": "never"}})
        for n in range(5):
            with scene.consumer() as consumer:
                scene.diary.wait_for_starts("long", n + 1)
                consumer.stop()
                assert consumer.said("Released", "cut off", "not charged")
        assert (scene.letters(), scene.depth().dead) == ({}, 0)
        scene.drained()
        entries = scene.diary.entries("start")
        assert [(entry.attempt, entry.returned) for entry in entries] == [(1, False)] * 6
        assert scene.diary.done() == {"long": 1}


def test_it_works_as_process_1(lab: Lab) -> None:
    unshare = shutil.which("unshare")
    inside = [unshare or "", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not unshare or subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:  # noqa: S603 - as found
        pytest.skip("this system does not allow namespaces for processes here")
    with Scene(lab, concurrency=1, max_attempts=2, timeout=1) as scene:
        ids = scene.healthy(20)
        scene.publish({"orphan": {"do": "leave_orphan"}, "poison": {"do": "segfault"}, "stuck": {"do": "loop"}})
        with ConsumerProcess(scene.plan, prefix=inside) as consumer:
            scene.diary.wait_for_done([*ids, "orphan"])
            consumer.wait_for_line("'poison'", "is a dead letter")
            consumer.wait_for_line("'stuck'", "is a dead letter")
            (first,) = processes.children(consumer.pid)
            assert {entry.consumer for entry in scene.diary.entries("start")} == {1}
            processes.expect_no_zombie(first)
            scene.publish({"slow": {"do": "wait", "how": "open"}})
            scene.diary.wait_for_start("slow")
            os.kill(first, signal.SIGTERM)
            consumer.wait_for_line("draining")
            scene.open_gate("open")
            assert consumer.wait() == 0
        assert scene.diary.done() == dict.fromkeys([*ids, "orphan", "slow"], 1)
        assert set(scene.letters()) == {"poison", "stuck"}
        assert scene.depth().empty


def assert_each_ran_once_uncharged(scene: Scene, ids: list[str]) -> None:
    assert scene.diary.starts() == dict.fromkeys(ids, 1)
    assert scene.diary.done() == dict.fromkeys(ids, 1)
    assert {(entry.attempt, entry.returned) for entry in scene.diary.entries("start")} == {(1, False)}
    assert scene.letters() == {}
