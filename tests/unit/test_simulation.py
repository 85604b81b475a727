"""Are the promises on counting and blame kept in thousands of worlds?

A third of them every day, all in long runs. `SIMULATED_WORLDS=100000 make test ARGS=tests/unit/test_simulation.py` looks at more.
A world that breaks a promise says so with its seed and with the life of the message; `run(seed)` lives through it again.
"""

import os
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from tests.unit import coincidence, simulated_workers
from tests.unit.simulated_messages import DEADLY, Behaviour, End, partners
from tests.unit.simulated_truth import Broken
from tests.unit.simulated_workers import Staff
from tests.unit.simulation import Scene, run
from unpoison.decide import attempts, policy
from unpoison.flow.suspects import ExclusiveRun
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters
from unpoison.workers import deaths

WORLDS = int(os.environ.get("SIMULATED_WORLDS", "3000"))
PARTS, EVERY_DAY = 20, 7
FINE = Behaviour("fine")
KILLER = Behaviour("killer", then=End.KILL_CONSUMER)
STAFFS = {
    "batches": Staff("batch", workers=2, lanes=1, batch=4),
    "threads": Staff("threads", workers=2, lanes=3, batch=3),
    "async": Staff("async", workers=1, lanes=6, batch=6),
}
staffs = pytest.mark.parametrize("staff", STAFFS.values(), ids=STAFFS)
limits = pytest.mark.parametrize("limit", [1, 2, 3, 5])


def consume(worlds):
    for _ in worlds:
        pass


def ends(world):
    return Counter((life.behaviour.name, life.outcome) for life in world.lives.values())


@pytest.mark.timeout(max(120, WORLDS // 20))
@pytest.mark.parametrize("part", [*range(EVERY_DAY), *(pytest.param(n, marks=pytest.mark.long) for n in range(EVERY_DAY, PARTS))])
def test_every_promise_is_kept_in_every_world(part):
    letters, outcomes, alone = Counter(), Counter(), 0
    for seed in range(part, WORLDS, PARTS):
        world = run(seed)
        letters += world.letters
        alone += world.starts_alone
        outcomes.update(life.outcome for life in world.lives.values())
    if WORLDS >= 1000:  # what never happened has not been tried
        assert set(outcomes) == {"done", "dead", "discarded", "waiting"}
        assert {"crash", "lost", "timeout", "transient", "permanent"} <= set(letters)
        assert alone > 100


@staffs
@limits
@pytest.mark.parametrize("processes", [1, 3])
def test_one_that_kills_its_consumer_is_dead_lettered_as_lost_and_its_neighbours_are_done(staff, limit, processes):
    for seed in range(10):
        world = run(seed, Scene(limit, staff, [KILLER, *[FINE] * 25], processes))
        assert ends(world) == {("killer", "dead"): 1, ("fine", "done"): 25}
        assert world.letters == {"lost": 1}
        assert world.lives["m0"].starts_ever == limit + 1


@staffs
@limits
@pytest.mark.parametrize("how", [end for end in DEADLY if end not in (End.KILL_CONSUMER, End.HANG)], ids=lambda end: end.name)
def test_one_that_kills_workers_is_dead_lettered_for_a_crash_and_its_neighbours_are_done(staff, limit, how):
    for seed in range(5):
        world = run(seed, Scene(limit, staff, [Behaviour("killer", then=how), *[FINE] * 15]))
        assert ends(world) == {("killer", "dead"): 1, ("fine", "done"): 15}
        assert world.letters == {"crash": 1}
        assert world.lives["m0"].starts_ever <= limit + 1


@limits
@pytest.mark.parametrize("how", [End.SEGFAULT, End.KILL_WORKER, End.HANG, End.LIE], ids=lambda end: end.name)
def test_one_that_takes_down_nothing_but_its_own_worker_starts_exactly_as_often_as_the_limit_says(limit, how):
    one_at_a_time = Staff("batch", workers=2, lanes=1, batch=1)
    for seed in range(10):
        world = run(seed, Scene(limit, one_at_a_time, [Behaviour("killer", then=how), FINE], processes=1))
        assert world.lives["m0"].starts_ever <= limit + (how is End.LIE)
        assert world.lives["m1"].outcome == "done"


@staffs
def test_two_that_kill_only_together_are_both_done(staff):
    staff, together = replace(staff, batch=staff.lanes), 0  # one batch would keep them apart
    for seed in range(40):
        world = run(seed, Scene(3, staff, [*partners(), FINE, FINE], processes=1))
        assert ends(world) == {("deadly pair", "done"): 2, ("fine", "done"): 2}
        together += max(life.starts_ever for life in world.lives.values()) > 1
    assert together > 10


@staffs
def test_a_fleet_killed_once_costs_everybody_one_ordinary_start_at_the_most(staff):
    """A message that came back once runs in company again: running all of them alone would take far longer."""
    once = Behaviour("once deadly", (End.KILL_CONSUMER,))
    for seed in range(20):
        world = run(seed, Scene(5, staff, [once, *[FINE] * 30], processes=1))
        assert set(ends(world)) == {("once deadly", "done"), ("fine", "done")}
        assert world.starts_alone == 0
        assert all(life.starts_ever <= 2 for life in world.lives.values())


@staffs
def test_planned_stops_charge_nobody_however_many_there_are(staff):
    slow = Behaviour("slow", takes=(10, 20))
    for seed in range(30):
        world = run(seed, Scene(1, staff, [slow] * 12, stop=0.05, troubled=400))
        assert ends(world) == {("slow", "done"): 12}
        assert world.letters == {}


def test_one_that_no_planned_stop_lets_finish_is_given_up_when_it_is_too_old():
    endless = Behaviour("endless", takes=(10**6, 10**6))
    for seed in range(10):
        world = run(seed, Scene(5, STAFFS["batches"], [endless, FINE], processes=1, stop=0.2, troubled=10**6, max_age=6.0))
        assert ends(world) == {("endless", "dead"): 1, ("fine", "done"): 1}
        assert world.letters == {"unknown": 1}


def test_innocents_are_dead_lettered_by_coincidence_only_where_consumers_are_killed_all_the_time():
    worlds = [coincidence.dead(run(seed, coincidence.scene(333))) for seed in range(5)]
    assert sum(worlds) == 0


def test_a_broken_promise_is_told_with_the_life_of_the_message(monkeypatch):
    monkeypatch.setattr(Counters, "marked", lambda counters, by, at: counters)
    with pytest.raises(Broken) as broken:
        run(7, Scene(2, STAFFS["batches"], [KILLER, FINE], processes=1))
    told = str(broken.value).splitlines()
    assert told[0] == "seed 7: m0 (killer): a suspect's start is not on record"
    assert told[1].startswith("limit 2, ")
    assert [line.split(maxsplit=1)[1] for line in told[2:]] == [
        "fetched by consumer 1 with attempts 0, vanished 0, losses 0",
        "starts in consumer 1",
        "kills its consumer process with everything in it",
        "consumer 1 was killed by a message",
        "fetched by consumer 2 with attempts 0, vanished 1, losses 0",
        "is kept for another start, 0.00 s from now",
        "taken by consumer 2 to run alone, with attempts 0, vanished 1, losses 0, alone",
        "starts in consumer 2 alone",
    ]


def _changed(function, **fields):
    """The function, with these fields of the counters it returns set to something else."""

    def changed(counters, *arguments, **options):
        after = function(counters, *arguments, **options)
        return msgspec.structs.replace(after, **{name: change(counters, after) for name, change in fields.items()})

    return changed


_doubt = attempts.doubt

BREAKS = {
    "a return is not counted": (Counters, "returned", lambda counters: counters),
    "a suspect's start is not recorded": (Counters, "marked", lambda counters, by, at: counters),
    "losses in company are free": (Counters, "charged", property(lambda counters: counters.attempts + counters.losses)),
    "losses alone are free": (Counters, "charged", property(lambda counters: counters.attempts + max(0, counters.vanished - 1))),
    "a failure is free": (attempts, "failed", _changed(attempts.failed, attempts=lambda before, after: before.attempts)),
    "a failure clears losses": (attempts, "failed", _changed(attempts.failed, vanished=lambda before, after: 0)),
    "a crash is forgotten": (attempts, "failed", _changed(attempts.failed, fresh=lambda before, after: before.fresh)),
    "the bystanders go free": (attempts, "bystander", lambda counters, *, alone: counters),
    "the bystanders are charged": (
        attempts,
        "bystander",
        _changed(attempts.bystander, attempts=lambda before, after: after.attempts + 1),
    ),
    "a planned stop is charged": (
        attempts,
        "interrupted",
        _changed(attempts.interrupted, attempts=lambda b, after: b.attempts + 1),
    ),
    "suspects run in company": (attempts, "_is_suspect", lambda counters, limit: counters.alone),
    "everything returned runs alone": (attempts, "_is_suspect", lambda counters, limit: counters.alone or counters.vanished > 0),
    "a crash convicts in any worker": (attempts, "doubt", lambda failure, *_: failure.worker_damage),
    "a damaged worker convicts": (
        attempts,
        "doubt",
        lambda failure, *rest: _doubt(msgspec.structs.replace(failure, worker_damage=""), *rest),
    ),
    "what is in doubt is free": (attempts, "doubted", _changed(attempts.doubted, vanished=lambda before, after: before.vanished)),
    "what is in doubt is charged": (
        attempts,
        "doubted",
        _changed(attempts.doubted, attempts=lambda before, after: after.attempts + 1),
    ),
    "what is in doubt runs among others": (
        attempts,
        "doubted",
        _changed(attempts.doubted, fresh=lambda before, after: before.fresh),
    ),
    "no suspect is given up": (attempts, "admit_alone", lambda counters, limits: attempts.RUN_FRESH),
    "the limit is one too high": (policy, "_strictest", lambda own, metadata, policy: (own and own + 1, "nobody")),
    "a replayed killer runs in company": (DeadLetter, "replayed", lambda letter: Counters(replays=letter.replays + 1)),
    "deaths at one moment are looked at one by one": (simulated_workers, "may_be_one_event", lambda death, others: False),
    "a death by another's hand is thought one's own": (deaths.Death, "is_ambiguous", property(lambda death: False)),
    "others run beside a suspect": (ExclusiveRun, "enter", lambda alone, consumer: True),
    "nobody lets the others go on": (ExclusiveRun, "done", lambda alone, consumer: None),
}


@pytest.mark.parametrize(("where", "name", "broken"), BREAKS.values(), ids=BREAKS)
def test_the_simulation_notices_when_a_rule_is_broken(monkeypatch, where, name, broken):
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(Broken):
        consume(map(run, range(200)))
