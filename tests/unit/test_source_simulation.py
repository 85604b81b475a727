"""Does a consumer keep in a simulated outage what it promises, and does the simulation show what is lost without it?

The consumer and its state machines are the real ones: what fails here fails in an outage too.
"""

from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unpoison.control.breaker import RAMP_LASTS
from unpoison.control.options import DEFAULT_CONTROL, NO_CONTROL, Admission, Breaker
from unpoison.control.source import SourceControl
from unpoison.model.backoff import Backoff, Limits
from unpoison.simulation import run
from unpoison.simulation.run import STEPS_PER_SECOND, Simulation, alike, simulate
from unpoison.simulation.scenario import BEFORE, Kind, Variant, usual, variants
from unpoison.simulation.trouble import Drawn

LIMITS = Limits()
ALL_ON, ALL_OFF = Variant("all on", DEFAULT_CONTROL, LIMITS), Variant("all off", NO_CONTROL, LIMITS)


@cache
def outcome(kind, variant=ALL_ON, **options):
    return simulate(usual(kind, **options), variant)


def arrived(found, scenario):
    """Messages until the end of the simulation."""
    return len(found.waiting) * scenario.rate


def at_end(series, scenario):
    return series[int(scenario.ends) - 1]


def test_ten_minutes_of_outage_at_a_thousand_a_second_cost_nothing():
    found = outcome(Kind.OUTAGE)
    assert (found.dead, found.done + found.left) == (0, arrived(found, usual(Kind.OUTAGE)))
    assert found.most_charged <= 2
    assert found.most_probes == 1
    assert found.calls_meanwhile < 3_000
    assert found.works_again <= 15.5
    assert found.peak_after <= 2_000
    assert found.caught_up == pytest.approx(600, rel=0.1)
    assert max(found.waiting) == pytest.approx(600_000, rel=0.05)


def test_ten_minutes_of_outage_at_one_a_second_cost_nothing():
    found = outcome(Kind.OUTAGE, rate=1.0)
    assert (found.dead, found.most_charged_finally, found.most_probes) == (0, 2, 1)
    assert found.works_again <= 15.5


def test_without_any_state_machine_thousands_die_and_the_load_is_five_times_as_high():
    found = outcome(Kind.OUTAGE, ALL_OFF, length=60.0)
    assert 40_000 < found.dead < 60_000
    assert found.most_charged == 5
    assert 3.5 < found.times_the_traffic < 5
    assert found.probes == found.changes == 0


def test_without_the_breaker_the_budget_still_bounds_the_load_and_admission_the_letters():
    found = outcome(Kind.OUTAGE, ALL_ON.without("breaker"), rate=50.0, length=60.0)
    assert 1.0 < found.times_the_traffic < 1.3
    assert 0 < found.dead < 200
    assert found.most_charged == 5


def test_a_consumer_without_budget_or_admission_fares_no_worse_in_an_outage_while_it_has_its_breaker():
    with_all, *others = (
        outcome(Kind.OUTAGE, each, rate=50.0, length=60.0)
        for each in (ALL_ON, ALL_ON.without("budget"), ALL_ON.without("admission"))
    )
    assert all(
        (each.dead, each.most_charged <= 2, each.calls_meanwhile) == (0, True, with_all.calls_meanwhile) for each in others
    )


@settings(max_examples=6, deadline=None)
@given(
    rate=st.floats(3, 60),
    length=st.floats(5, 90),
    headroom=st.floats(1.5, 8),
    seed=st.integers(0, 100),
    depends_on=st.sampled_from([None, "billing"]),
)
def test_no_outage_of_what_is_known_by_name_costs_a_message(rate, length, headroom, seed, depends_on):
    scenario = usual(Kind.OUTAGE, rate=rate, length=length, capacity=headroom * rate, seed=seed)
    control = msgspec.structs.replace(DEFAULT_CONTROL, depends_on=depends_on)
    found = simulate(scenario, Variant("as set", control, LIMITS))
    assert found.dead == 0
    assert found.most_charged_finally <= 2
    assert found.most_probes <= 1
    assert found.works_again <= 15.5
    assert found.caught_up is not None


def test_an_outage_is_recognised_by_type_and_place_too():
    found = outcome(Kind.OUTAGE, rate=100.0, length=120.0, is_named=False)
    assert found.dead == 0
    assert found.times_the_traffic < 0.1


def test_a_bad_deploy_costs_sixty_letters_at_most_and_all_others_are_done_after_the_next_one():
    scenario = usual(Kind.BAD_DEPLOY, length=60.0)
    found, off = outcome(Kind.BAD_DEPLOY, length=60.0), outcome(Kind.BAD_DEPLOY, ALL_OFF, length=60.0)
    assert 0 < found.dead <= 60
    assert found.done + found.dead + found.left == arrived(found, scenario)
    assert found.caught_up is not None
    assert off.dead == pytest.approx(60_000, rel=0.01)
    assert [each.event for each in found.told] == ["pause"]


def test_while_it_is_bad_one_message_a_minute_is_tried():
    found = outcome(Kind.BAD_DEPLOY, rate=20.0, length=300.0)
    assert 4 <= found.probes <= 5


def test_the_others_go_on_while_a_third_waits_for_what_is_down():
    scenario = usual(Kind.PARTIAL_OUTAGE, rate=50.0, length=60.0)
    found, off = (
        outcome(Kind.PARTIAL_OUTAGE, rate=50.0, length=60.0),
        outcome(Kind.PARTIAL_OUTAGE, ALL_OFF, rate=50.0, length=60.0),
    )
    assert found.dead == 0
    assert found.most_charged <= 2
    assert found.most_probes <= 1
    assert at_end(found.waiting, scenario) < 1.1 * 0.3 * 50 * 60
    assert found.times_the_traffic < 1.1
    assert off.dead > 500
    assert off.times_the_traffic > 3.5


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("rate", "length"), [(10.0, 180.0), (50.0, 60.0), (1_000.0, 4.0)])
@pytest.mark.parametrize("needing", [0.7, 0.8, 0.9])
def test_the_others_go_on_at_full_speed_though_most_wait_for_what_is_down(needing, rate, length, seed):
    """Which message needs it is drawn, so that some stand in a row by chance."""
    scenario = usual(Kind.PARTIAL_OUTAGE, rate=rate, length=length, share=needing, seed=seed)
    simulation = Simulation(scenario, ALL_ON)
    drawn, done = Drawn(needing, seed), [0]
    for second in simulation.seconds():
        done.append(simulation.ledger.done)
        if second == scenario.ends:
            break
    others = sum(number not in drawn for number in range(int(BEFORE * rate), int(scenario.ends * rate)))
    assert done[int(scenario.ends)] - done[int(BEFORE)] >= 0.98 * others
    assert [each.event for each in simulation.ledger.told] == ["outage"]
    assert (simulation.ledger.dead, simulation.ledger.most_charged <= 2) == (0, True)


@pytest.mark.parametrize(("rate", "most"), [(1.0, 150), (10.0, 120), (100.0, 170)])
def test_where_everything_needs_what_is_down_it_gets_few_calls_and_the_source_is_paused_once(rate, most):
    found = outcome(Kind.OUTAGE, rate=rate)
    assert (found.dead, found.most_charged_finally <= 2) == (0, True)
    assert found.calls_meanwhile <= most
    assert [each.event for each in found.told] == ["outage", "pause", "resume", "outage-over"]


def test_that_an_outage_is_over_is_told_though_nothing_asks_for_what_was_down_any_more():
    """All that waited are done soon, and then nothing fails."""
    quick = msgspec.structs.replace(DEFAULT_CONTROL, breaker=Breaker(longest_probe=1.0))
    simulation = Simulation(usual(Kind.PARTIAL_OUTAGE, rate=5.0, length=15.0), Variant("as set", quick, LIMITS))
    for _ in range(round((BEFORE + 15 + 2 * RAMP_LASTS) * STEPS_PER_SECOND)):
        simulation._advance()
    assert [each.event for each in simulation.ledger.told] == ["outage", "outage-over"]


def test_a_throttling_dependency_gets_no_more_than_it_takes_and_nobody_is_charged():
    found = outcome(Kind.THROTTLING, rate=50.0, length=60.0)
    assert (found.dead, found.most_charged) == (0, 0)
    assert found.times_the_traffic < 0.6
    untold = outcome(Kind.THROTTLING, ALL_OFF.without("throttle"), rate=50.0, length=60.0)
    assert untold.dead > 500
    assert untold.times_the_traffic > 2


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "guessed"])
def test_one_poison_message_in_a_thousand_moves_no_state_machine(is_named):
    on, off = (outcome(Kind.POISON, each, length=60.0, is_named=is_named) for each in (ALL_ON, ALL_OFF))
    assert on.dead > 40
    assert (on.dead, on.done, on.changes) == (off.dead, off.done, 0)
    assert on.most_charged_finally == off.most_charged_finally == 5


@pytest.mark.parametrize("kind", Kind)
def test_no_message_is_lost_or_made(kind):
    scenario = usual(kind, rate=20.0, length=30.0)
    for variant in (ALL_ON, ALL_ON.without("breaker")):
        found = simulate(scenario, variant)
        assert found.done + found.dead + found.left == arrived(found, scenario)


@pytest.mark.parametrize("kind", [Kind.PARTIAL_OUTAGE, Kind.POISON])
def test_the_same_seed_gives_the_same_outcome_and_another_one_another(kind):
    is_named = kind is Kind.PARTIAL_OUTAGE
    first, again, other = (
        simulate(usual(kind, rate=10.0, length=20.0, share=0.1, seed=seed, is_named=is_named), ALL_ON) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.calls != other.calls or first.waiting != other.waiting


def test_a_sample_shows_what_all_messages_would(monkeypatch):
    scenario = usual(Kind.OUTAGE, rate=60.0, length=40.0)
    sample = simulate(scenario, ALL_OFF)
    monkeypatch.setattr(run, "SAMPLED_RATE", 60.0)
    full = simulate(scenario, ALL_OFF)
    assert (sample.weight, full.weight) == (4, 1)
    assert sample.dead == pytest.approx(full.dead, rel=0.1)
    assert sample.calls_meanwhile == pytest.approx(full.calls_meanwhile, rel=0.05)


def test_the_limits_and_options_of_a_consumer_hold():
    short = Variant("as set", NO_CONTROL, Limits(max_attempts=2, backoff=Backoff.fixed(5)))
    assert outcome(Kind.OUTAGE, short, rate=10.0, length=30.0).most_charged == 2
    strict = Variant("as set", msgspec.structs.replace(DEFAULT_CONTROL, admission=Admission(at_least=10)), LIMITS)
    assert outcome(Kind.BAD_DEPLOY, strict, rate=10.0, length=30.0).dead == 10
    late = Variant("as set", msgspec.structs.replace(DEFAULT_CONTROL, breaker=Breaker(messages=200)), LIMITS)
    soon = outcome(Kind.OUTAGE, rate=10.0, length=30.0)
    assert outcome(Kind.OUTAGE, late, rate=10.0, length=30.0).calls_meanwhile > 2 * soon.calls_meanwhile


def test_a_consumer_that_never_rests_is_noticed(monkeypatch):
    monkeypatch.setattr(SourceControl, "next_look_in", lambda *_: 0.0)
    monkeypatch.setattr(SourceControl, "is_calm", False)
    with pytest.raises(RuntimeError, match=r"does not come to rest at 0\.05 s of outage"):
        simulate(usual(Kind.OUTAGE, rate=10.0, length=5.0), ALL_ON)


def test_what_is_over_early_is_drawn_as_long_as_the_others():
    short, long = outcome(Kind.OUTAGE, ALL_OFF, rate=50.0, length=60.0), outcome(Kind.OUTAGE, rate=50.0, length=60.0)
    assert len(short.calls) < len(long.calls)
    drawn = alike(usual(Kind.OUTAGE, rate=50.0, length=60.0), [short, long])
    assert {len(series) for each in drawn for series in (each.calls, each.waiting)} == {len(long.calls)}
    assert drawn[0].calls[-1] == 50
    assert drawn[0].waiting[-1] < 50


def test_progress_grows_to_one():
    told = []
    simulate(usual(Kind.OUTAGE, rate=5.0, length=5.0), ALL_ON, told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) > BEFORE


def test_a_simulation_ends_though_the_backlog_never_does(monkeypatch):
    monkeypatch.setattr("unpoison.simulation.scenario.LEAST_PATIENCE", 20.0)
    found = Simulation(usual(Kind.OUTAGE, rate=20.0, length=5.0, capacity=1.0), ALL_ON)
    assert list(found.seconds())[-1] == BEFORE + 5 + 20
    assert found.outcome().caught_up is None
    assert found.outcome().left > 0


@pytest.mark.parametrize(("rate", "capacity"), [(4.0, 5.0), (20.0, 25.0), (100.0, 130.0)])
def test_workers_handle_as_many_messages_as_was_said(rate, capacity):
    found = simulate(usual(Kind.OUTAGE, rate=rate, length=60.0, capacity=capacity), ALL_OFF)
    assert 0.9 * capacity <= found.peak <= capacity + 1


@pytest.mark.parametrize(("rate", "weight"), [(20.0, 1.0), (29.0, 1.0), (30.0, 2.0), (1_500.0, 100.0)])
def test_a_sample_is_taken_where_it_saves_half_of_the_work(rate, weight):
    assert simulate(usual(Kind.OUTAGE, rate=rate, length=5.0), ALL_OFF).weight == weight


def test_without_a_word_workers_have_room_however_slow_the_source_is():
    assert usual(Kind.OUTAGE, rate=0.1).capacity == 20.0
    assert usual(Kind.OUTAGE, rate=100.0).capacity == 600.0


def test_each_machine_is_left_out_in_turn_where_that_is_asked_for():
    names = {kind: [each.name for each in variants(kind, ALL_ON)] for kind in Kind}
    assert names[Kind.OUTAGE] == ["all on", "all off"]
    assert names[Kind.PARTIAL_OUTAGE] == ["all on", "without breaker", "all off"]
    assert names[Kind.THROTTLING] == ["all on", "without throttle", "all off"]
    each = variants(Kind.OUTAGE, ALL_ON, each=True)
    assert [one.name for one in each] == ["all on", "without breaker", "without budget", "without admission", "all off"]
    assert [(one.control.breaker is None, one.control.budget is None, one.control.admission is None) for one in each] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (True, True, True),
    ]


def test_a_machine_that_a_consumer_has_not_is_not_left_out():
    bare = msgspec.structs.replace(NO_CONTROL, budget=0.2)
    assert [each.name for each in variants(Kind.OUTAGE, Variant("as set", bare, LIMITS), each=True)] == [
        "as set",
        "without budget",
    ]
    assert [each.name for each in variants(Kind.OUTAGE, Variant("as set", NO_CONTROL, LIMITS), each=True)] == ["as set"]
