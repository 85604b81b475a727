"""Whatever a message does in its worker, those beside and behind it run as if it were not there."""

import os
import signal
import time
from contextlib import suppress

import pytest

from unpoison.testing.isolation import tree
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab, Trait, trait


def test_a_hung_message_does_not_hold_its_batch_mates(lab: Lab) -> None:
    with Scene(lab, concurrency=2) as scene:
        quick = scene.healthy(300, "before")  # by these the consumer learns that it may hand out large batches
        scene.publish({"hung": {"do": "wait", "how": "open"}})
        quick += scene.healthy(300, "after")
        with scene.consumer():
            scene.diary.wait_for_done(quick)
            assert scene.diary.done()["hung"] == 0
            scene.open_gate("open")
            scene.diary.wait_for_done(["hung"])
        assert scene.diary.starts() == dict.fromkeys([*quick, "hung"], 1)
        assert scene.depth().empty


def test_hung_messages_do_not_hold_what_another_consumer_could_run(lab: Lab) -> None:
    with Scene(lab, concurrency=1) as scene:
        quick = scene.healthy(300, "before")
        scene.publish({"hung": {"do": "wait", "how": "open"}})
        quick += scene.healthy(300, "after")
        with scene.consumer() as first:
            scene.diary.wait_for_start("hung")
            with scene.consumer() as second:
                scene.diary.wait_for_done(quick)
                assert {entry.consumer for entry in scene.diary.entries("start")} == {first.pid, second.pid}
                scene.open_gate("open")
        assert scene.diary.starts() == dict.fromkeys([*quick, "hung"], 1)


@trait(Trait.SILENT)
@pytest.mark.parametrize("style", ["sync", "async"])
def test_time_in_which_everything_stood_still_is_nobodys_running_time(lab: Lab, style: str) -> None:
    limit = 1.5
    with Scene(lab, style=style, timeout=limit, concurrency=3) as scene:
        warm_up = scene.healthy(20, "warm-up")  # so that the others start at once, well within the limit
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(warm_up)
            running = ["first", "second"]
            for id_ in running:  # one by one, or they could be handed to one worker together
                scene.publish({id_: {"do": "wait", "how": "open"}})
                scene.diary.wait_for_start(id_)
            with frozen(scene.plan.token):
                thawing = time.monotonic() + 2 * limit  # nothing else tells that time has passed for processes that stand still
                wait_until(lambda: time.monotonic() > thawing, lambda: "the clock stands still")
            scene.publish({"afterwards": {}})
            scene.diary.wait_for_done(["afterwards"])  # the consumer has looked at everything by then
            scene.open_gate("open")
            scene.diary.wait_for_done(running)
        assert scene.diary.starts() == dict.fromkeys([*warm_up, *running, "afterwards"], 1)
        assert not consumer.said("failed in attempt")


def test_a_thread_that_a_message_left_behind_and_that_crashes_later_dead_letters_no_innocent(lab: Lab) -> None:
    with Scene(lab, max_attempts=2, concurrency=1) as scene:
        guilty = [f"guilty-{n}" for n in range(3)]
        innocent = []
        for n, id_ in enumerate(guilty):
            scene.publish({id_: {"do": "leave_thread"}})
            innocent += scene.healthy(5, f"innocent-{n}", do="work", how=0.05)
        scene.drained()
        assert scene.letters() == {}
        assert set(scene.diary.done()) == {*guilty, *innocent}
        assert sum(scene.diary.starts()[id_] for id_ in innocent) > len(innocent), "the thread crashed nobody"


def test_a_message_is_convicted_only_in_a_worker_that_nobody_has_damaged_before(lab: Lab) -> None:
    with Scene(lab, max_attempts=2, concurrency=1, also={"delay": 0.5}) as scene:
        guilty = [f"guilty-{n}" for n in range(4)]
        bodies = {id_: {"do": "leave_thread", "how": "innocent"} for id_ in guilty}
        order = ["guilty-0", "innocent", *guilty[1:]]  # those behind damage the next worker, before the innocent one is retried
        scene.publish({id_: bodies.get(id_, {"do": "block", "how": 0.2}) for id_ in order})
        scene.drained()
        assert scene.diary.starts() == {**dict.fromkeys(guilty, 1), "innocent": 2}
        assert set(scene.diary.done()) == {*guilty, "innocent"}
        assert scene.letters() == {}


@pytest.mark.parametrize("style", ["sync", "threads", "async"])
@pytest.mark.parametrize("how", ["zeros", "ones", "ff", "noise", "success"])
def test_a_worker_that_overwrites_its_marks_settles_nothing_that_did_not_run(lab: Lab, how: str, style: str) -> None:
    limit = 3
    threads = 4 if style == "threads" else 1
    with Scene(lab, max_attempts=limit, style=style, concurrency=1 if style == "sync" else 4, threads=threads) as scene:
        innocent = scene.healthy(40, "before")
        scene.publish({"poison": {"do": "overwrite", "how": how}})
        innocent += scene.healthy(40, "after")
        scene.drained()
        assert set(scene.diary.done()) == set(innocent)
        assert set(scene.letters()) == {"poison"}
        assert scene.diary.starts()["poison"] <= limit + 1
        assert scene.depth().empty


def test_a_worker_that_forges_success_for_the_last_of_its_batch_is_not_believed(lab: Lab) -> None:
    """Nothing is behind it that could contradict; but it wrote further than its batch goes."""
    with Scene(lab, max_attempts=3, concurrency=1) as scene:
        innocent = scene.healthy(40)
        scene.publish({"poison": {"do": "overwrite", "how": "success"}})
        scene.drained()
        assert set(scene.diary.done()) == set(innocent)
        assert set(scene.letters()) == {"poison"}


class frozen:  # noqa: N801 - reads as a word: with frozen(…)
    """Every process of the scene stands still in the block, the consumer first, as when a machine is paused."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __enter__(self) -> None:
        self._pids = sorted(tree.alive(self._token))
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(tree.state(pid) == "T" for pid in self._pids), lambda: "not all of them stand still")

    def __exit__(self, *raised: object) -> None:
        for pid in reversed(self._pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
