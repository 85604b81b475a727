"""An outage, a throttle or a bad deploy is told from poison: it costs no message its attempts, and does not drain the source.

Consumers are real processes, the dependency is a real HTTP server, and all times are a twentieth of the defaults. The same with
isolated workers: isolation_flow_control.py.
"""

import itertools
import time
from collections.abc import Sequence

from unpoison.model.backoff import Backoff
from unpoison.testing.isolation.diary import PATIENCE, wait_until
from unpoison.testing.isolation.flow_scene import BREAKER, SHORTER, FlowScene, Traffic, moment
from unpoison.testing.isolation.processes import ConsumerProcess
from unpoison.testing.lab import Lab, Trait, trait

SLACK = 1.0
"""Seconds that a broker may be late with a message that is due, and a machine that is busy with starting it."""

MOVES = ("pause", "resume", "outage", "outage-over", "throttled", "budget")
"""What a consumer logs when flow control does anything."""


# The outage of what every message needs.


def test_an_outage_dead_letters_nothing_and_is_probed_one_message_at_a_time_until_it_ends(lab: Lab) -> None:
    with FlowScene(lab) as scene:
        expect_no_harm_from_an_outage(scene, burst=5, intervals=3)


def expect_no_harm_from_an_outage(scene: FlowScene, *, burst: int, intervals: int) -> None:
    """Messages come in slowly when it begins, and all at once while it lasts for so many intervals between probes."""
    with scene.consumer() as consumer:
        ids = scene.healthy(5, "before")
        scene.diary.wait_for_done(ids)
        scene.dependency.refuse()
        with scene.traffic(rate=SHORTER) as trickle:
            consumer.wait_for_line("is paused", f"{scene.dependency.address} is down")
        opened = time.monotonic()
        ids += [*trickle.ids, *scene.healthy(burst, "burst")]
        time.sleep(intervals * BREAKER.longest_probe)
        recovered = scene.dependency.work()
        first = scene.first_done_after(recovered)
        assert first - recovered <= BREAKER.longest_probe + SLACK
        scene.diary.wait_for_done(ids)
        assert len(consumer.said("is paused")) == 1
        scene.wait_until_empty()
    expect_one_probe_at_a_time(scene, opened, recovered)
    assert len(scene.starts_between(first, first + 1)) <= 5, "it did not begin slowly"
    expect_nobody_paid(scene, ids)


def expect_one_probe_at_a_time(scene: FlowScene, opened: float, recovered: float, *, in_hand: int = 0) -> None:
    """After intervals that double up to the longest; each probe is another message. `in_hand`: how many a busy machine may still
    be starting when the log says that the source is paused."""
    probes = scene.starts_between(opened, recovered)
    doublings = 5  # from a twentieth of a second up to the longest
    fit = (recovered - opened) / BREAKER.longest_probe
    assert fit / 2 <= len(probes) <= fit + doublings + in_hand, probes
    late = probes[doublings + in_hand :]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(late)]
    # A probe that is started late does not delay the next one; two at once would be no gap at all.
    assert min(gaps, default=1.0) >= 0.5 * BREAKER.longest_probe, gaps
    assert all(one != other for (_, one), (_, other) in itertools.pairwise(probes)), "the same one again"


def expect_nobody_paid(scene: FlowScene, ids: Sequence[str]) -> None:
    """All were done, none was charged more than twice for what was not its fault, and none is left or dead."""
    assert set(scene.diary.done()) == set(ids)
    assert {id_: charged for id_, charged in scene.charged().items() if charged > 2} == {}
    depth = scene.depth()
    assert (depth.empty, depth.dead) == (True, 0)


# What only some messages need.


@trait(Trait.TAKEOVER)
def test_in_a_partial_outage_the_others_go_on_and_a_killed_consumer_charges_nobody(lab: Lab) -> None:
    with FlowScene(lab) as scene:
        scene.dependency.refuse()
        with scene.consumer() as consumer:
            before = expect_the_others_to_go_on(scene, consumer, "before")
            scene.kill(consumer)
        with scene.consumer() as consumer:
            after = expect_the_others_to_go_on(scene, consumer, "after")
            assert not set(scene.diary.done()) & {*before.needing(), *after.needing()}
            scene.dependency.work()
            scene.wait_until_empty(2 * PATIENCE)
        expect_nobody_paid(scene, [*before.ids, *after.ids])


def expect_the_others_to_go_on(scene: FlowScene, consumer: ConsumerProcess, name: str) -> Traffic:
    """Of ten messages that come in, three need what is down. Returns them all."""
    with scene.traffic(40, needing=3, name=name) as traffic:
        consumer.wait_for_line(f"{scene.dependency.address} is down")
        traffic.wait(1.5)
    scene.diary.wait_for_done(traffic.others())
    assert not consumer.said("is paused")
    return traffic


def test_what_hangs_holds_only_the_messages_that_need_it(lab: Lab) -> None:
    with FlowScene(lab, also={"client_timeout": 0.2}) as scene:
        scene.dependency.hang()
        with scene.consumer() as consumer:
            traffic = expect_the_others_to_go_on(scene, consumer, "traffic")
            scene.dependency.work()
            scene.wait_until_empty(2 * PATIENCE)
        expect_nobody_paid(scene, traffic.ids)


# A bad deploy, and what is none.


def test_a_bad_deploy_dead_letters_sixty_messages_at_most_and_the_next_one_handles_the_rest(lab: Lab) -> None:
    with FlowScene(lab) as scene:
        expect_a_bad_deploy_to_be_stopped(scene, 300)


def expect_a_bad_deploy_to_be_stopped(scene: FlowScene, count: int) -> None:
    ids = scene.healthy(count, calls=False)
    scene.redeployed("1", is_broken=True)
    with scene.consumer() as consumer:
        (told,) = [consumer.wait_for_line("is paused", "were to become dead letters")]
        assert (told.level, told.event) == ("ERROR", "pause")
        scene.wait_until_ended(consumer)
        dead = scene.depth().dead
        assert 50 <= dead <= 60
        assert len(consumer.said("is paused")) == 1
    scene.redeployed("2")
    with scene.consumer():
        wait_until(lambda: len(scene.diary.done()) == count - dead, lambda: f"{len(scene.diary.done())} are done, {dead} dead")
        scene.wait_until_empty()
    letters = scene.letters()
    assert len(letters) == dead
    assert set(letters) | set(scene.diary.done()) == set(ids)
    assert set(scene.charged().values()) == {0}


def test_without_admission_a_bad_deploy_dead_letters_everything(lab: Lab) -> None:
    with FlowScene(lab, also={"is_broken": True}, admission=None) as scene:
        ids = scene.healthy(80, calls=False)
        with scene.consumer() as consumer:
            scene.wait_for_dead(80)
            assert not moves(consumer)
        assert set(scene.letters()) == set(ids)


def test_garbage_does_not_pause_a_source(lab: Lab) -> None:
    with FlowScene(lab) as scene:
        expect_garbage_to_pause_nothing(scene, 100)


def expect_garbage_to_pause_nothing(scene: FlowScene, count: int) -> None:
    scene.publish({f"garbage-{n}": b"\xff\x00" for n in range(count)})
    ids = scene.healthy(5)
    with scene.consumer() as consumer:
        scene.wait_for_dead(count)
        scene.wait_until_empty()
        assert not moves(consumer)
    assert set(scene.diary.done()) == set(ids)
    assert scene.depth().dead == count


def test_one_poison_in_a_thousand_moves_nothing(lab: Lab) -> None:
    with FlowScene(lab, backoff=Backoff.immediate()) as scene:
        poison = {"bug": {"calls": False, "raise": "KeyError"}, "failing": {"calls": False, "raise": "ConnectionError"}}
        ids = scene.healthy(500, "before", calls=False)
        scene.publish(poison)
        ids += scene.healthy(500, "after", calls=False)
        with scene.consumer() as consumer:
            scene.diary.wait_for_done(ids)
            scene.wait_for_dead(2)
            assert not moves(consumer)
        assert set(scene.letters()) == set(poison)
        assert scene.diary.starts() == dict.fromkeys(ids, 1) | {"bug": 1, "failing": 5}


def moves(consumer: ConsumerProcess) -> list[str]:
    """What flow control did."""
    return [line.message for line in consumer.log() if line.event in MOVES]


# Throttling, and retries.


def test_a_throttled_message_waits_alone_and_several_slow_their_source(lab: Lab) -> None:
    with FlowScene(lab) as scene, scene.consumer() as consumer:
        scene.dependency.throttle(1.0, only=["tenant-0"])
        alone = scene.healthy(1, "tenant")
        others = scene.healthy(100, "others")
        scene.diary.wait_for_done([*alone, *others])
        first, second = (moment(entry) for entry in scene.diary.of(*alone) if entry.what == "start")
        assert first < scene.dependency.free_at <= second
        assert not moves(consumer)

        scene.dependency.throttle(1.5)
        several = scene.healthy(8, "several")
        consumer.wait_for_line("throttles several messages")
        slowed = time.monotonic()
        several += scene.healthy(5, "later")
        scene.diary.wait_for_done(several)
        scene.wait_until_empty()
        assert scene.starts_between(slowed + 0.2, scene.dependency.free_at) == [], "something started although it was to wait"
    expect_nobody_paid(scene, [*alone, *others, *several])
    assert set(scene.charged().values()) == {0}


def test_retries_beyond_the_budget_wait_for_their_turn_and_are_not_charged_for_it(lab: Lab) -> None:
    count, floor = 40, 10
    with FlowScene(lab, backoff=Backoff.immediate()) as scene:
        scene.publish({f"flaky-{n}": {"calls": False, "once": n} for n in range(count)})
        with scene.consumer() as consumer:
            consumer.wait_for_line("The retry budget", "is used up")
            scene.diary.wait_for_done([f"flaky-{n}" for n in range(count)])
            scene.wait_until_empty()
        retries = sorted(float(entry.note) for entry in scene.diary.entries("start") if entry.attempt > 1)
        assert len(retries) == count
        for begin in retries:
            within = [at for at in retries if begin <= at < begin + 1]
            assert len(within) <= 2 * floor + 0.2 * count, "a burst may use what was saved up in a second"
        assert retries[-1] - retries[0] >= (count - 2 * floor - 0.2 * count) / floor
        assert set(scene.charged().values()) == {1}
        expect_nobody_paid(scene, [f"flaky-{n}" for n in range(count)])
