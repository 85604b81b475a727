"""The promises about flow control once more, with isolated workers: they take messages in batches, and can be cut off.

Some of these are the whole thing rather than a sample of it: ten minutes of outage with all times a twentieth, 5,000 messages.
"""

import time
from collections.abc import Sequence

import pytest

from unpoison.testing.contract.flow_control import (
    SLACK,
    expect_a_bad_deploy_to_be_stopped,
    expect_garbage_to_pause_nothing,
    expect_no_harm_from_an_outage,
    expect_nobody_paid,
    expect_one_probe_at_a_time,
)
from unpoison.testing.isolation.flow_scene import BREAKER, SHORTER, FlowScene
from unpoison.testing.lab import Lab

OUTAGE = 600 / SHORTER
IN_HAND = 16
"""Messages in the hands of workers."""
MEASURED = 35.0
"""Seconds of steady traffic after which the rate of a source is known."""


def test_an_outage_that_catches_whole_batches_dead_letters_nothing(lab: Lab) -> None:
    with FlowScene(lab, isolated=True, concurrency=2) as scene:
        expect_no_harm_from_an_outage(scene, burst=60, intervals=3)


def test_a_dependency_that_hangs_and_is_named_by_the_consumer_pauses_the_source(lab: Lab) -> None:
    """Workers that wait for it are killed at the time limit, so that nothing is left that could name it."""
    with FlowScene(lab, isolated=True, depends_on="billing", timeout=0.2, concurrency=4) as scene, scene.consumer() as consumer:
        ids = scene.healthy(5, "before")
        scene.diary.wait_for_done(ids)
        scene.dependency.hang()
        ids += scene.healthy(20, "hanging")
        consumer.wait_for_line("is paused", "billing is down")
        recovered = scene.dependency.work()
        assert scene.first_done_after(recovered) - recovered <= BREAKER.longest_probe + SLACK
        scene.diary.wait_for_done(ids)
        scene.wait_until_empty()
        expect_nobody_paid(scene, ids)


def test_a_bad_deploy_that_fails_in_whole_batches_is_stopped_as_early(lab: Lab) -> None:
    with FlowScene(lab, isolated=True) as scene:
        expect_a_bad_deploy_to_be_stopped(scene, 300)


# In a long run only.


@pytest.mark.parametrize("rate", [1, 5])
def test_ten_minutes_of_outage_end_with_twice_the_earlier_rate_until_the_backlog_is_gone(lab: Lab, rate: int) -> None:
    """At a message a second, and at five."""
    rate = int(rate * SHORTER)
    with FlowScene(lab, isolated=True) as scene, scene.consumer() as consumer:
        with scene.traffic(rate) as traffic:
            traffic.wait(MEASURED)
            scene.dependency.refuse()
            consumer.wait_for_line("is paused")
            opened = time.monotonic()
            traffic.wait(OUTAGE)
            recovered = scene.dependency.work()
            first = scene.first_done_after(recovered)
            assert first - recovered <= BREAKER.longest_probe + SLACK
            scene.wait_for_depth(lambda depth: depth.ready + depth.delayed + depth.leased <= rate, 4 * OUTAGE)
        scene.wait_until_empty()
        expect_one_probe_at_a_time(scene, opened, recovered, in_hand=IN_HAND)
        starts = [at for at, _ in scene.starts_between(first, time.monotonic())]
        assert most_within(5.0, starts) <= 5 * 2 * rate * 1.1
        expect_nobody_paid(scene, traffic.ids)


def most_within(seconds: float, moments: Sequence[float]) -> int:
    """How many of these sorted moments lie within so many seconds of each other, at most."""
    begin = most = 0
    for end, at in enumerate(moments):
        while moments[begin] <= at - seconds:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def test_a_bad_deploy_of_five_thousand_messages_dead_letters_sixty_at_most(lab: Lab) -> None:
    with FlowScene(lab, isolated=True) as scene:
        expect_a_bad_deploy_to_be_stopped(scene, 5_000)


def test_a_thousand_undecodable_messages_pause_nothing(lab: Lab) -> None:
    with FlowScene(lab, isolated=True) as scene:
        expect_garbage_to_pause_nothing(scene, 1_000)
