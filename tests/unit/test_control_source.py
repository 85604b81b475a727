"""What one source may start, and what a failure means for it, with all state machines together. Times are passed in."""

import heapq
from collections import Counter
from itertools import compress, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpoison import App
from unpoison.control.admission import PROBE_INTERVAL, TooManyDead
from unpoison.control.beside import HARDLY_ANY_FOR, ROW
from unpoison.control.breaker import FORGET_AFTER, RAMP_ENDS, RAMP_LASTS, CircuitState
from unpoison.control.changes import BudgetUsedUp, Closed, Opened, OperatorPause, Paused, Resumed, Slowed, StillDown
from unpoison.control.circuits import MAX_CIRCUITS
from unpoison.control.evidence import End, Evidence
from unpoison.control.options import NO_CONTROL, Admission, Breaker, ControlOptions
from unpoison.control.source import GARBAGE, SourceControl
from unpoison.control.turns import LONGEST_WAIT
from unpoison.errors import ConfigError
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery, PastAttempt
from unpoison.model.verdict import ErrorClassification

PAST = PastAttempt(1, 0.0, "transient", "ConnectionError: refused")


def message(name, **counters):
    return Delivery(None, "orders", str(name), b"", counters=Counters(**counters))


def retried(name, **counters):
    return message(name, history=(PAST,), attempts=1, **counters)


def failure(dependency="billing:443", kind=ErrorClassification.TRANSIENT, **facts):
    return Failure(
        classification=kind,
        rule=facts.pop("rule", "refused"),
        type_name="ConnectionError",
        text="refused",
        dependency=dependency,
        is_dependency_named=facts.pop("is_dependency_named", True),
        **facts,
    )


def fail(control, name, now, dependency="billing:443", **facts):
    """A message that was never tried starts and fails."""
    delivery = message(name)
    control.admit([delivery], now)
    control.ended([], 1, now)
    return control.weigh(delivery, failure(dependency, **facts), now)


PAUSES = ROW * Breaker().messages
"""So many that fail in a row, and nothing else, pause a source."""


def down(control=None, now=0.0, messages=PAUSES, **facts):
    """A source on which everything fails on one dependency, for so long that it is paused."""
    control = control or SourceControl(ControlOptions())
    for number in range(messages):
        fail(control, f"m{number}", now if number else now - HARDLY_ANY_FOR, **facts)
    return control


def succeed(control, names, now):
    deliveries = [message(name) for name in names]
    control.admit(deliveries, now)
    control.ended(deliveries, 0, now)


def test_without_any_machine_nothing_is_limited_and_nothing_changes_its_meaning():
    control = SourceControl(NO_CONTROL)
    for number in range(1000):
        meaning = fail(control, number, 0.0)
        assert (meaning.failure, meaning.wait, meaning.waits_for, meaning.refund) == (failure(), None, "", 0)
        assert control.refuses_letter(message(number), failure(), 0.0) is None
    assert (control.room(0.0), control.is_calm, control.changes) == (None, True, [])


def test_when_everything_fails_on_one_dependency_the_source_is_paused_and_probes_it():
    control = down()
    assert control.is_paused
    assert isinstance(control.pause, Evidence)
    assert [type(change) for change in control.changes] == [Opened, Paused]
    assert (control.room(0.9), control.room(1.0)) == (0, 1)
    assert 0 < control.next_look_in(0.4) <= 0.6


def test_a_failure_during_an_outage_is_not_charged_and_waits():
    control = down()
    meaning = fail(control, "another", 0.5)
    assert meaning.failure.classification is ErrorClassification.OUTAGE
    assert not meaning.failure.charged
    assert meaning.wait >= 0.5
    assert meaning.waits_for == "billing:443"
    assert "billing:443 is down" in meaning.failure.rule


def test_once_a_probe_succeeds_the_source_goes_on_slowly_and_then_without_a_limit():
    control = down()
    probe = message("probe")
    assert control.room(1.0) == 1
    control.admit([probe], 1.0)
    assert control.room(1.0) == 0, "one at a time"
    control.ended([probe], 0, 1.1)
    assert not control.is_paused
    now, started, number = 1.1, 0, 0
    while not control.is_calm:
        room = control.room(now)
        names = [f"again-{number}-{each}" for each in range(20 if room is None else min(20, room))]
        succeed(control, names, now)
        control.fetched(len(names) + 1, len(names), now)
        started, number, now = started + len(names), number + 1, now + 0.05
        assert now < 120
    assert [type(change) for change in control.changes] == [Opened, Paused, Resumed, Closed]
    assert started > 10


@pytest.mark.parametrize("rate", [1, 10, 1000])
def test_after_an_outage_the_source_has_at_most_twice_its_rate_until_the_backlog_is_gone(rate):
    control, now, starts = SourceControl(ControlOptions()), 0.0, []
    while now < 60:
        succeed(control, [f"before-{now}-{each}" for each in range(max(1, rate // 10))], now)
        now += max(0.1, 1 / rate)
    while not control.is_paused:
        now += 1 / rate
        fail(control, f"m{now}", now)
    resumed = now = now + 1.0
    for _ in range(1000):
        room = control.room(now)
        assert room is not None
        names = [f"after-{now}-{each}" for each in range(room)]
        starts += [now] * room
        succeed(control, names, now)
        control.fetched(room, room, now)
        now += 0.05
    for second in range(10, 45):
        assert sum(second <= at - resumed < second + 1 for at in starts) <= 2.2 * rate + 1


def test_a_source_with_far_more_traffic_than_before_its_pause_is_not_held_back_for_ever():
    control, now, minute = SourceControl(ControlOptions()), 0.0, []
    while now < 60:
        succeed(control, [now], now)
        now += 0.1
    now += HARDLY_ANY_FOR
    down(control, now)
    now += 1.0
    while (room := control.room(now)) is not None:
        succeed(control, [f"{now}-{each}" for each in range(min(room, 100))], now)
        control.fetched(room, room, now)
        minute.append(min(room, 100))
        now += 0.5
        assert now < 1800
    early, late = minute[20:120], minute[-120:]
    assert sum(early) / len(early) <= 11, "twice ten a second at first"
    assert sum(late) / len(late) == 100


def test_a_source_that_was_paused_for_a_day_is_back_at_full_speed_within_two_hours():
    control, now, day = SourceControl(ControlOptions()), 0.0, 86_400.0
    while now < 60:
        succeed(control, [now], now)
        now += 1.0
    control.pause_by_operator(OperatorPause("ana@desk", "migration", 1.0), now)
    now += day
    control.pause_by_operator(None, now)
    resumed = now
    while (room := control.room(now)) is not None and now < resumed + day:
        succeed(control, [f"{now}-{each}" for each in range(min(room, 1_000))], now)
        control.fetched(room, room, now)
        if now < resumed + 3_600:
            assert room <= 3
        now += 1.0
    assert now - resumed < 2 * 3_600


def test_those_that_waited_are_not_held_back_for_ever_where_too_few_new_ones_came():
    control, now, started = down(), 1.0, 0
    control.circuits.pausing = None
    waiting = [retried(number, waits_for="billing:443", put_off=1) for number in range(100_000)]
    while waiting and now < 1800:
        room = control.circuits.get("billing:443").room(now)
        asking = waiting[: 1000 if room is None else max(room, 1)]
        some, _ = control.admit(asking, now)
        control.ended(some, 0, now)
        started, waiting, now = started + len(some), waiting[len(some) :], now + 1.0
    assert not waiting


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("needing", [0.3, 0.7, 0.8, 0.9])
@pytest.mark.parametrize(("batch", "every"), [(1, 0.1), (1, 0.01), (100, 0.05), (5_000, 1.5)])
def test_in_a_partial_outage_the_others_go_on_and_the_source_is_not_paused(needing, batch, every, seed):
    control, now, random = SourceControl(ControlOptions()), 0.0, Random(seed)
    for number in range(max(5, 5_000 // batch)):
        now += every
        deliveries = [message(f"{number}-{each}") for each in range(batch)]
        needs = [random.random() < needing for _ in deliveries]
        bad = list(compress(deliveries, needs))
        control.admit(deliveries, now)
        control.ended([delivery for delivery, it_does in zip(deliveries, needs, strict=True) if not it_does], len(bad), now)
        for delivery in bad:
            control.weigh(delivery, failure(), now)
    assert control.room(now) is None
    assert [type(change) for change in control.changes] == [Opened]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("needing", [0.7, 0.8, 0.9])
def test_a_source_that_was_paused_by_chance_goes_on_once_another_message_succeeds_and_stays_so(needing, seed):
    """Fifty messages a second come; while it is paused, probes are those that have never failed."""
    control, random, now, paused, number = down(), Random(seed), 0.0, 0.0, 0
    while now < 600:
        now += 0.02
        paused += 0.02 * control.is_paused
        if control.room(now) != 0:
            number += 1
            if random.random() < needing:
                fail(control, f"needing-{number}", now)
            else:
                succeed(control, [f"other-{number}"], now)
    control.expire(now)
    assert paused < 15 * 3 / (1 - needing)
    assert [type(change) for change in control.changes if not isinstance(change, StillDown)] == [Opened, Paused, Resumed]
    assert control.circuits.get("billing:443").evidence is not None, "it is still down"


def test_a_message_that_never_failed_and_succeeds_as_a_probe_does_not_show_that_what_is_down_works_again():
    control = down()
    succeed(control, ["other"], 1.0)
    assert not control.is_paused
    fail(control, "needing", 1.1)
    assert (control.is_paused, control.circuits.get("billing:443").state) == (False, CircuitState.OPEN)


def test_nor_does_it_if_nothing_comes_after_it():
    control = down()
    succeed(control, ["other"], 1.0)
    control.expire(1.0 + RAMP_LASTS + 1)
    assert (control.is_paused, control.circuits.get("billing:443").state) == (False, CircuitState.OPEN)
    assert not any(isinstance(change, Closed) for change in control.changes)


def test_with_depends_on_any_message_that_succeeds_shows_that_it_works_again():
    control = down(SourceControl(ControlOptions(depends_on="billing:443")))
    assert control.is_paused
    succeed(control, ["any"], 1.0)
    fail(control, "another", 1.1)
    assert control.circuits.get("billing:443").state is CircuitState.RAMP, "one that fails again shows nothing yet"


def test_a_burst_of_messages_that_need_what_is_down_does_not_hold_up_those_behind_it():
    control = SourceControl(ControlOptions())
    for number in range(500):
        fail(control, f"burst-{number}", 0.9 * number / 500)
    assert not control.is_paused
    succeed(control, [f"behind-{number}" for number in range(100)], 1.0)
    for number in range(500):
        fail(control, f"another-{number}", 1.0 + number / 1000)
    assert not control.is_paused


def test_a_partial_outage_that_becomes_a_whole_one_pauses_the_source():
    control, now = SourceControl(ControlOptions()), 0.0
    for number in range(1000):
        now += 0.01
        fail(control, f"f{number}", now)
        if number < 500:
            succeed(control, [f"s{number}", f"t{number}"], now)
    assert control.is_paused


def test_those_that_wait_for_a_dependency_are_put_off_but_for_the_probe():
    control, now = SourceControl(ControlOptions()), 0.0
    for number in range(100):
        succeed(control, [f"s{number}", f"t{number}"], now)
        fail(control, number, now)
    assert not control.is_paused
    waiting = [retried(f"w{number}", waits_for="billing:443", put_off=1) for number in range(50)]
    started, put_off = control.admit(waiting, 2.0)
    assert [delivery.id for delivery in started] == ["w0"]
    assert len(put_off) == 49
    assert all(each.after > 0.9 and each.waits_for == "billing:443" for each in put_off)
    assert sum(each.after > 14 for each in put_off) >= 48, "one at most comes back for the next probe"


def _ten_minutes_of_waiting(messages):
    """Of a dependency that is down while others go on: the copies of each message, and when each probe was made by whom."""
    control = SourceControl(ControlOptions())
    for number in range(9):
        succeed(control, [f"s{number}", f"t{number}"], 0.0)
        fail(control, number, 0.0)
    copies, probes, due = dict.fromkeys(range(messages), 1), [], []
    for number in range(messages):
        succeed(control, [f"b{number}"], number / messages)
        wait = fail(control, f"w{number}", number / messages).wait
        due.append((number / messages + wait, number))
    heapq.heapify(due)
    while due[0][0] < 600:
        now, number = heapq.heappop(due)
        delivery = retried(f"w{number}", waits_for="billing:443", put_off=copies[number])
        copies[number] += 1
        started, put_off = control.admit([delivery], now)
        if started:
            probes.append((now, number))
            control.ended([], 1, now)
            wait = control.weigh(delivery, failure(), now).wait
        else:
            wait = put_off[0].after
        heapq.heappush(due, (now + wait, number))
    return copies, probes


def test_ten_thousand_that_wait_cost_five_copies_each_in_ten_minutes_at_the_most():
    copies, probes = _ten_minutes_of_waiting(10_000)
    assert max(copies.values()) <= 5
    assert len(probes) >= 600 / 15


def test_those_that_failed_before_it_was_an_outage_cost_no_more():
    control, copies, counters = SourceControl(ControlOptions()), Counter(), {}
    due = [(number / 1000, number) for number in range(20_000)]
    while due[0][0] < 600:
        now, number = heapq.heappop(due)
        succeed(control, [f"other-{now}"], now)
        delivery = retried(number, **counters[number]) if number in counters else message(number)
        started, put_off = control.admit([delivery], now) if number in counters else ([delivery], ())
        if started:
            control.started(started, number not in counters, now)
            control.ended([], 1, now)
            meaning = control.weigh(delivery, failure(), now)
            wait, waits_for = meaning.wait, meaning.waits_for
        else:
            wait, waits_for = put_off[0].after, put_off[0].waits_for
        copies[number] += 1
        counters[number] = {"waits_for": waits_for, "put_off": counters.get(number, {}).get("put_off", 0) + (wait is not None)}
        heapq.heappush(due, (now + (0.5 if wait is None else wait), number))
    assert max(copies.values()) <= 5


def test_in_each_outage_that_the_fleet_tells_of_a_message_is_put_off_five_times_in_ten_minutes_at_the_most():
    control = SourceControl(ControlOptions())
    control.circuits.share(is_shared=True)
    for began, messages in ((0.0, 20_000), (7_200.0, 2_000)):
        times, due = dict.fromkeys(range(messages), 1), []
        for number in range(messages):
            now = began + 60 * number / messages
            control.circuits.follow_fleet(Evidence("billing:443", began, 10, ("refused",)), 15.0, 15 - now % 15, now)
            succeed(control, [f"other-{number}"], now)
            due.append((now + fail(control, number, now).wait, number))
        heapq.heapify(due)
        while due[0][0] < began + 600:
            now, number = heapq.heappop(due)
            control.circuits.follow_fleet(Evidence("billing:443", began, 10, ("refused",)), 15.0, 15 - now % 15, now)
            _, (refused,) = control.admit([retried(number, waits_for="billing:443", put_off=times[number])], now)
            times[number] += 1
            heapq.heappush(due, (now + refused.after, number))
        assert max(times.values()) <= 5
        control.circuits.close("billing:443", began + 600)


@pytest.mark.parametrize("waiting", [2, 5, 50, 1000])
def test_each_probe_is_another_message_and_a_failed_one_goes_behind_the_others(waiting):
    _, probes = _ten_minutes_of_waiting(waiting)
    numbers = [number for _, number in probes]
    assert all(number != following for number, following in pairwise(numbers))
    assert max(map(numbers.count, numbers)) <= max(5, len(numbers) / min(waiting, 3) + 2)
    times = [now for now, _ in probes]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps[5:]) <= 1.2 * 15
    assert min(gaps) >= 0.9


def test_poison_that_fails_on_a_dependency_that_works_for_all_others_opens_no_circuit():
    control, now, others = SourceControl(ControlOptions()), 0.0, [message("good")] * 9990
    for second in range(120):
        now += 1.0
        control.started(others, len(others), now)
        control.ended(others, 0, now)
        for each in range(10):
            poison = f"poison-{second}-{each}"
            assert fail(control, poison, now).wait is None
            assert control.weigh(retried(poison), failure(), now + 0.5).wait is None
    assert control.changes == []


def test_a_source_that_was_paused_for_a_partial_outage_goes_on_once_others_succeed():
    control, now = down(), 1.0
    assert control.is_paused
    for number in range(200):
        now += min(1.0, control.next_look_in(now))
        for _ in range(min(20, 20 if (room := control.room(now)) is None else room)):
            number_now = len(control.changes) + number
            delivery = message(f"{number}-{_}-{number_now}")
            control.admit([delivery], now)
            if number % 10 < 3:
                control.ended([], 1, now)
                control.weigh(delivery, failure(), now)
            else:
                control.ended([delivery], 0, now)
        control.fetched(20, 20, now)
        if not control.is_paused:
            break
    assert not control.is_paused
    assert now < 60


def test_the_fleet_ends_no_pause_of_which_it_has_not_heard_yet():
    control = down()
    evidence = control.pause
    for is_pausing, is_paused in ((False, True), (True, True), (False, False)):
        control.circuits.follow_fleet(evidence, 1.0, 1.0, 0.1, is_pausing=is_pausing)
        assert (control.pause is not None) is is_paused


def test_while_three_probes_hang_nobody_is_asked_all_the_time():
    control, now = down(), 0.0
    for number in range(3):
        now += 20.0
        assert control.room(now) == 1
        control.admit([message(f"probe-{number}")], now)
    now += 100.0
    assert control.room(now) == 0
    assert control.next_look_in(now) > 1


def test_while_a_probe_is_due_and_nothing_is_there_nobody_looks_all_the_time():
    control = SourceControl(ControlOptions())
    bug = failure("", ErrorClassification.BUG, is_dependency_named=False)
    while control.refuses_letter(message("dead"), bug, 0.0) is None:
        pass
    assert (control.room(100.0), control.next_look_in(100.0)) == (1, float("inf"))
    control = down()
    assert (control.room(100.0), control.next_look_in(100.0)) == (1, float("inf"))


def test_one_probe_starts_at_a_time_also_of_messages_that_waited_for_something_else():
    control = down(SourceControl(ControlOptions(budget=None)))
    now, started = 1.0, 0
    for number in range(50):
        if control.room(now):
            started += len(control.admit([retried(number)], now)[0])
    assert started == 1


@pytest.mark.parametrize("rate", [10, 1000])
def test_an_outage_of_something_without_a_name_is_noticed_within_seconds_after_a_healthy_hour(rate):
    control, now, good = SourceControl(ControlOptions()), 0.0, [message("good")] * rate
    for _ in range(60):
        now += 1.0
        control.started(good, len(good), now)
        control.ended(good, 0, now)
    begin = now
    while not control.changes:
        now += 1 / rate
        fail(control, f"m{now}", now, dependency="TimeoutError in ship.py:ship", is_dependency_named=False)
    assert now - begin < 4


def test_an_outage_of_something_without_a_name_is_noticed_though_each_message_is_retried_often():
    control = SourceControl(ControlOptions())
    for second in range(PAUSES + 10):
        fail(control, second, second, "OSError in shop.py:charge", is_dependency_named=False)
        for earlier in range(max(0, second - 4), second):
            control.admit([retried(earlier)], second)
            control.ended([], 1, second)
            control.weigh(retried(earlier), failure("OSError in shop.py:charge", is_dependency_named=False), second)
    assert [type(change) for change in control.changes if not isinstance(change, BudgetUsedUp)] == [Opened, Paused]


def test_a_few_poison_messages_among_others_that_fail_alike_are_no_outage():
    control, now = SourceControl(ControlOptions()), 0.0
    for second in range(60):
        now += 1.0
        succeed(control, [f"{second}-{each}" for each in range(10)], now)
        for number in range(15 if second == 30 else 0):
            fail(control, number, now, dependency="Oops in ship.py:ship", is_dependency_named=False)
        for number in range(15 if second in (31, 32) else 0):
            delivery = retried(number)
            control.admit([delivery], now)
            control.ended([], 1, now)
            control.weigh(delivery, failure("Oops in ship.py:ship", is_dependency_named=False), now)
    assert not any(isinstance(change, Opened) for change in control.changes)


def test_an_outage_that_lasts_is_told_again_every_ten_minutes():
    control = SourceControl(ControlOptions())
    told = []
    for second in range(3000):
        succeed(control, [f"{second}-{each}" for each in range(10)], second)
        fail(control, second, second)
        told += [second for change in control.changes if isinstance(change, StillDown)]
        control.changes.clear()
    assert told == [600, 1200, 1800, 2400]


def test_messages_that_asked_for_another_start_need_no_budget():
    control = SourceControl(ControlOptions())
    later = [message(number, history=(PAST,)) for number in range(1000)]
    assert control.admit(later, 0.0) == (later, [])


@pytest.mark.parametrize("rate", [3, 30])
def test_those_that_waited_for_a_partial_outage_do_not_fall_on_what_has_just_recovered(rate):
    """Each second so many messages need the dependency, and twice as many do not; it is down for five minutes."""
    control, now, due, number, calls = SourceControl(ControlOptions()), 0.0, [], 0, [0] * 1200
    while now < len(calls):
        others = [message("other")] * (2 * rate)
        control.started(others, len(others), now)
        control.ended(others, 0, now)
        ready = [message(f"m{number + each}") for each in range(rate)]
        number += rate
        while due and due[0][0] <= now + 1:
            ready.append(heapq.heappop(due)[2])
        for delivery in ready:
            started, put_off = control.admit([delivery], now)
            calls[int(now)] += len(started)
            wait = put_off[0].after if put_off else None
            if started and 60 <= now < 360:
                control.ended([], 1, now)
                wait = control.weigh(delivery, failure(), now).wait or 1.0
            elif started:
                control.ended([delivery], 0, now)
            if wait is not None:
                times = delivery.counters.put_off + 1
                heapq.heappush(due, (now + wait, delivery.id, retried(delivery.id, waits_for="billing:443", put_off=times)))
        now += 1.0
    after = calls[375:]
    assert max(sum(after[begin : begin + 10]) for begin in range(len(after))) <= 2.3 * 10 * rate
    assert not due, "all were handled in less than three times the outage"
    assert not control.is_paused


def test_a_consumer_that_saw_little_of_the_outage_starts_what_waited_within_seconds():
    control, started = SourceControl(ControlOptions()), 0
    evidence = Evidence("billing:443", 0.0, 100, ("refused",))
    control.circuits.follow_fleet(evidence, 15.0, 0.0, 600.0)
    waiting = [retried(number, waits_for="billing:443", put_off=5) for number in range(3000)]
    for step in range(200):
        now = 600.0 + step / 10
        some, put_off = control.admit(waiting, now)
        control.ended(some, 0, now)
        started += len(some)
        waiting = [each.delivery for each in put_off]
    assert (started, waiting) == (3000, [])


def test_a_bad_deploy_is_paused_after_fifty_dead_letters_and_a_probe_a_minute_follows():
    control = SourceControl(ControlOptions())
    bug = failure("", ErrorClassification.BUG, is_dependency_named=False)
    refused = 0
    for number in range(5000):
        delivery = message(number)
        control.ended([], 1, number / 3000)
        control.weigh(delivery, bug, number / 3000)
        refused += control.refuses_letter(delivery, bug, number / 3000) is not None
    assert refused == 4950
    assert isinstance(control.pause, TooManyDead)
    assert control.room(59.0) == 0
    assert control.room(PROBE_INTERVAL + 2) == 1
    probe = message("probe")
    control.admit([probe], PROBE_INTERVAL + 2)
    assert control.room(PROBE_INTERVAL + 3) == 0
    control.ended([], 1, PROBE_INTERVAL + 3)
    control.weigh(probe, bug, PROBE_INTERVAL + 3)
    assert control.refuses_letter(probe, bug, PROBE_INTERVAL + 3) is not None, "a failed probe is kept too"
    another = message("another")
    assert control.room(2 * PROBE_INTERVAL + 3) == 1
    control.admit([another], 2 * PROBE_INTERVAL + 3)
    control.ended([another], 0, 2 * PROBE_INTERVAL + 4)
    assert control.pause is None


def test_a_message_that_its_handler_discards_is_no_dead_letter_and_as_a_probe_it_resumes():
    control = SourceControl(ControlOptions())
    bug = failure("", ErrorClassification.BUG, is_dependency_named=False)
    discard = failure("", ErrorClassification.PERMANENT, is_dependency_named=False, discard=True)
    for number in range(1000):
        control.ended([], 5, 0.0)
        for each in range(4):
            control.weigh(message(f"{number}-{each}"), discard, 0.0)
        assert control.refuses_letter(message(number), bug, 0.0) is None, "a fifth"
    while control.refuses_letter(message("dead"), bug, 0.0) is None:
        pass
    probe = message("probe")
    control.admit([probe], PROBE_INTERVAL + 1)
    control.ended([], 1, PROBE_INTERVAL + 1)
    control.weigh(probe, discard, PROBE_INTERVAL + 1)
    assert control.pause is None


@pytest.mark.parametrize("rule", sorted(GARBAGE))
def test_garbage_pauses_nothing(rule):
    control = SourceControl(ControlOptions())
    unfit = failure("", ErrorClassification.INVALID, rule=rule, started=False, charged=False, is_dependency_named=False)
    for number in range(1000):
        control.ended([], 1, 0.0)
        control.weigh(message(number), unfit, 0.0)
        assert control.refuses_letter(message(number), unfit, 0.0) is None
    assert control.is_calm


def test_a_schema_that_no_message_fits_pauses_the_source():
    control = SourceControl(ControlOptions())
    unfit = failure("", ErrorClassification.INVALID, rule="schema", started=False, charged=False, is_dependency_named=False)
    assert any(control.refuses_letter(message(number), unfit, 0.0) for number in range(100))


@given(st.integers(0, 999), st.sampled_from(sorted(set(ErrorClassification) - {ErrorClassification.THROTTLED})))
def test_one_poison_in_a_thousand_moves_nothing(where, kind):
    control, now, good = SourceControl(ControlOptions()), 0.0, [message("good")] * 999
    for number in range(20):
        now += 1.0
        control.ended(good[:where], 0, now)
        poison = retried(f"poison-{number}")
        control.admit([poison], now)
        control.ended([], 1, now)
        control.weigh(poison, failure("ship.py:ship", kind, is_dependency_named=False), now)
        control.refuses_letter(poison, failure("ship.py:ship", kind), now)
        control.ended(good[where:], 0, now)
    assert control.changes == []


@pytest.mark.parametrize(
    "kind",
    [
        ErrorClassification.CRASH,
        ErrorClassification.LOST,
        ErrorClassification.INVALID,
        ErrorClassification.PERMANENT,
        ErrorClassification.BUG,
    ],
)
def test_failures_that_no_outage_causes_are_no_evidence(kind):
    control = SourceControl(ControlOptions(admission=None))
    assert {fail(control, number, 0.0, kind=kind).failure.charged for number in range(100)} == {True}
    assert control.is_calm


def test_a_handler_that_asks_for_another_start_is_no_evidence_unless_it_names_the_dependency():
    control = SourceControl(ControlOptions())
    for number in range(100):
        fail(control, number, 0.0, dependency="shop.py:ship", is_dependency_named=False, charged=False)
    assert control.is_calm
    assert down(charged=False).is_paused


def test_with_depends_on_a_single_success_in_ten_failures_does_not_keep_the_source_running():
    control = SourceControl(ControlOptions(depends_on="billing"))
    succeed(control, ["one"], 0.0)
    for number in range(10):
        fail(control, number, 1.0, dependency="", is_dependency_named=False)
    assert control.pause.dependency == "billing"


def test_with_depends_on_a_source_on_which_most_succeed_is_not_paused():
    control = SourceControl(ControlOptions(depends_on="billing"))
    for number in range(100):
        succeed(control, [f"{number}-{each}" for each in range(7)], number / 10)
        fail(control, number, number / 10, dependency="billing")
    assert not control.is_paused


def test_a_handler_that_asks_for_a_later_start_is_not_started_earlier_because_of_an_outage():
    control = down(messages=11)
    waits = [fail(control, f"later-{number}", 0.5, retry_after=30.0, charged=False).wait for number in range(10)]
    assert min(waits) >= 30.0
    assert fail(control, "soon", 0.5).wait < 30.0, "others have not lost their turn"
    assert fail(control, "much later", 0.5, retry_after=1e300, charged=False).wait < 1e10


def test_what_waited_for_the_budget_once_is_soon_forgotten():
    control = SourceControl(ControlOptions())
    control.admit([retried(number) for number in range(100_000)], 0.0)
    _, put_off = control.admit([retried(f"late-{number}") for number in range(100)], 605.0)
    assert max(each.after for each in put_off) < 20


def test_retries_beyond_the_budget_wait_for_their_turn_uncharged():
    control = SourceControl(ControlOptions())
    started, put_off = control.admit([retried(number) for number in range(1000)], 0.0)
    assert len(started) == 10
    assert len(put_off) == 990
    waits = [each.after for each in put_off]
    assert 0.4 < min(waits) < 1.1
    assert 95 < max(waits) < 105, "ten a second"
    assert control.changes == [BudgetUsedUp(1, 0.2)]


def test_no_message_waits_for_the_budget_for_longer_than_ten_minutes_without_a_look():
    control = SourceControl(ControlOptions())
    _, put_off = control.admit([retried(number) for number in range(20_000)], 0.0)
    assert max(each.after for each in put_off) <= LONGEST_WAIT
    late = [each.after for each in put_off if each.after > 299]
    assert len({round(wait) for wait in late}) > 200, "they do not all come back at once"


def test_messages_that_waited_for_an_outage_do_not_use_the_budget():
    control = SourceControl(ControlOptions())
    waited = [retried(number, waits_for="billing:443", put_off=2) for number in range(100)]
    started, put_off = control.admit(waited, 0.0)
    assert (len(started), put_off) == (100, [])


def test_one_throttled_message_waits_by_itself_and_three_slow_the_source():
    control = SourceControl(ControlOptions())
    for second in range(10):
        succeed(control, [f"{second}-{each}" for each in range(100)], second)
    for name, room in (("a", None), ("b", None), ("c", 0)):
        fail(control, name, 10.0, kind=ErrorClassification.THROTTLED, retry_after=5.0, charged=False)
        assert control.room(10.0) == room
    evidence = Evidence("billing:443", 10.0, 3, ("ConnectionError: refused",))
    assert control.changes == [Slowed(evidence, 5.0)]
    assert control.room(14.9) == 0
    assert 0 < control.room(15.1) < 10
    assert not control.is_paused


def test_an_operator_pauses_and_resumes():
    control, pause = SourceControl(ControlOptions()), OperatorPause("ana@desk", "migration", 1.0)
    control.pause_by_operator(pause, 5.0)
    control.pause_by_operator(pause, 6.0)
    assert (control.pause, control.room(1000.0), control.next_look_in(1000.0)) == (pause, 0, float("inf"))
    control.pause_by_operator(None, 65.0)
    assert control.changes == [Paused(pause), Resumed(60.0, pause)]
    assert [control.paused_for(age, 165.0) for age in (200.0, 160.0, 130.0, 100.0, 1.0)] == [60.0, 60.0, 30.0, 0.0, 0.0]


def test_each_reason_of_a_pause_is_told_when_it_begins_to_count_and_the_end_once():
    control, pause = down(), OperatorPause("ana@desk", "migration", 1.0)
    outage = control.pause
    control.pause_by_operator(pause, 5.0)
    control.pause_by_operator(None, 65.0)
    assert control.changes == [Opened(outage), Paused(outage), Paused(pause), Paused(outage)]
    assert control.room(66.0) == 1
    control.admit([message("probe")], 66.0)
    control.ended([message("probe")], 0, 66.0)
    assert control.changes[4:] == [Resumed(66.0, outage)]


def test_what_a_person_has_resumed_forgets_the_outage_and_the_dead_letters():
    control = down()
    bug = failure("", ErrorClassification.BUG, is_dependency_named=False)
    for number in range(60):
        control.refuses_letter(message(number), bug, 0.5)
    control.resume_letters(2.0)
    control.circuits.close("billing:443", 2.0)
    assert control.pause is None
    assert control.refuses_letter(message("next"), bug, 2.0) is None
    assert fail(control, "next", 2.0).wait is None


BUG = Failure(classification=ErrorClassification.BUG, rule="bug", type_name="KeyError", text="total")


def hours_of_a_source(control, bad, seconds, begin=0.0):
    """A hundred messages a second, of which this share fails. Returns the dead letters, and how many have succeeded."""
    chance, now, letters, done = Random(7), begin, 0, 0
    while now < begin + seconds:
        room = control.room(now)
        deliveries = [message(f"{now}-{each}") for each in range(10 if room is None else min(10, room))]
        failing = [delivery for delivery in deliveries if chance.random() < bad]
        good = [delivery for delivery in deliveries if delivery not in failing]
        control.admit(deliveries, now)
        control.ended(good, len(failing), now)
        done += len(good)
        for delivery in failing:
            control.weigh(delivery, BUG, now)
            letters += control.refuses_letter(delivery, BUG, now) is None
        control.fetched(10, len(deliveries), now)
        now += 0.1
    return letters, done


@pytest.mark.parametrize(("bad", "least"), [(0.25, 1_000), (0.5, 50), (0.9, 5)])
def test_a_deploy_that_breaks_a_part_of_the_messages_costs_sixty_letters_an_hour_and_heals_by_itself(bad, least):
    control = SourceControl(ControlOptions())
    letters, done = hours_of_a_source(control, bad, 3_600)
    assert 50 <= letters <= 60
    assert done >= least
    assert hours_of_a_source(control, 0.0, 1_500, begin=3_600)[0] == 0
    assert control.is_calm
    assert not control.admission.is_on_probation


def test_poison_below_the_share_stops_nothing_though_a_source_is_on_probation():
    control = SourceControl(ControlOptions())
    while control.refuses_letter(message("dead"), BUG, 0.0) is None:
        pass
    control.admission.try_again(60.0)
    letters, done = hours_of_a_source(control, 0.05, 600, begin=60.0)
    assert control.pause is None
    assert letters > 1_000
    assert done > 40_000


def test_a_message_that_was_kept_waits_until_others_have_shown_whether_the_cause_is_gone():
    control = SourceControl(ControlOptions())
    while control.refuses_letter(message("dead"), BUG, 0.0) is None:
        pass
    kept = message("kept", history=(PAST,), put_off=1)
    assert control.refuses_letter(message("first"), BUG, 0.0) < 2.1, "a new version finds those at once"
    assert control.refuses_letter(kept, BUG, 60.0) >= 300, "a probe that fails goes behind the others"
    control.admission.try_again(60.0)
    started, put_off = control.admit([kept, message("new")], 61.0)
    assert [delivery.id for delivery in started] == ["new"]
    assert [each.delivery.id for each in put_off] == ["kept"]
    assert put_off[0].after >= 300
    assert control.admit([kept], 121.0)[0] == [kept]


def ends_of(control):
    return [change.end for change in control.changes if isinstance(change, Closed)]


def test_while_a_person_has_paused_the_source_no_outage_is_forgotten_and_for_a_while_after_it_neither():
    control = down()
    control.pause_by_operator(OperatorPause("ana@desk", "migration", 1.0), 100.0)
    for now in range(100, 100 + 3 * int(FORGET_AFTER)):
        control.expire(now)
        control.room(now)
    control.pause_by_operator(None, now)
    assert (ends_of(control), isinstance(control.pause, Evidence), control.room(now)) == ([], True, 1)
    for later, ends in ((FORGET_AFTER - 101, []), (FORGET_AFTER + 1, [End.FORGOTTEN])):
        control.expire(now + later)
        assert ends_of(control) == ends


def test_while_a_person_has_paused_the_source_no_ramp_ends_because_nothing_fails():
    control = down()
    control.admit([needing := retried("needing", waits_for="billing:443", put_off=1)], 1.0)
    control.ended([needing], 0, 1.0)
    control.pause_by_operator(OperatorPause("ana@desk", "migration", 1.0), 2.0)
    control.expire(100.0)
    control.pause_by_operator(None, 100.0)
    ends = []
    for now in (100.0 + RAMP_LASTS - 2, 100.0 + RAMP_LASTS):
        control.expire(now)
        ends.append(ends_of(control))
    assert ends == [[], [End.QUIET]]


def test_how_an_outage_ended_is_told():
    recovered, elsewhere = down(), down()
    for number in range(2 * RAMP_ENDS):
        needing = retried(number, waits_for="billing:443", put_off=1)
        recovered.admit([needing], 1.0)
        recovered.ended([needing], 0, 1.0)
    elsewhere.circuits.close("billing:443", 1.0)
    assert (ends_of(recovered), ends_of(elsewhere)) == ([End.RECOVERED], [End.TOLD])


def test_messages_that_are_taken_from_the_consumer_block_no_probe():
    control = down()
    control.admit([message("probe")], 1.0)
    control.dropped(1.5)
    assert control.room(2.5) == 1
    control.admit([message("another")], 2.5)
    control.forget([message("another")], 3.0)
    assert control.room(4.0) == 1


def test_a_thousand_circuits_are_kept_at_the_most():
    control = SourceControl(ControlOptions())
    for number in range(3 * MAX_CIRCUITS):
        fail(control, number, number / 100, dependency=f"tenant-{number}:443")
    assert len(list(control.circuits)) == MAX_CIRCUITS


def test_what_was_charged_before_the_outage_was_known_is_taken_back():
    control, first = SourceControl(ControlOptions()), retried("first")
    for now in (0.0, 0.1, 0.2, 0.3):
        assert control.weigh(first, failure(), now).failure.charged
    fail(control, "second", 0.4)
    meaning = control.weigh(first, failure(), 0.5)
    assert (meaning.failure.charged, meaning.refund) == (False, 2)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["good", "bad", "other", "throttled", "dead", "retry", "pause", "resume", "drop"]), st.floats(0, 30)
    ),
    max_size=120,
)


def _happens(control, what, delivery, now):
    permanent = failure("", ErrorClassification.PERMANENT, is_dependency_named=False)
    bug = failure("", ErrorClassification.BUG, is_dependency_named=False)
    throttled = failure(kind=ErrorClassification.THROTTLED, retry_after=3600.0)
    paused = OperatorPause("ana", "", 0.0)
    steps = {
        "good": lambda: control.ended([delivery], 0, now),
        "bad": lambda: (control.ended([], 1, now), control.weigh(delivery, failure(), now)),
        "other": lambda: control.weigh(delivery, permanent, now),
        "throttled": lambda: control.weigh(delivery, throttled, now),
        "dead": lambda: (control.weigh(delivery, bug, now), control.refuses_letter(delivery, bug, now)),
        "retry": lambda: control.admit([retried(f"r{delivery.id}", waits_for="billing:443", put_off=1)], now),
        "pause": lambda: control.pause_by_operator(paused, now),
        "resume": lambda: (control.pause_by_operator(None, now), control.resume_letters(now)),
        "drop": lambda: control.dropped(now),
    }
    steps[what]()


@given(STEPS, st.sampled_from([None, "billing:443"]))
def test_whatever_happens_a_source_without_an_operators_pause_starts_something_within_a_minute(steps, depends_on):
    control, now = SourceControl(ControlOptions(depends_on=depends_on)), 0.0
    for number, (what, pause) in enumerate(steps):
        now += pause
        delivery = message(number)
        if control.room(now) != 0:
            control.admit([delivery], now)
        _happens(control, what, delivery, now)
    control.pause_by_operator(None, now)
    control.dropped(now)
    until = now + PROBE_INTERVAL + 2
    while control.room(now) == 0:
        now += min(1.0, max(0.05, control.next_look_in(now)))
        assert now < until, control.pause


def test_options_that_cannot_be_meant_are_refused_by_the_consumer():
    app = App("memory://options")
    for wrong in (
        {"breaker": 5},
        {"budget": -1},
        {"budget": "much"},
        {"admission": True},
        {"depends_on": ""},
        {"depends_on": "x" * 201},
        {"depends_on": " " + "x" * 200},
        {"depends_on": "billing\0"},
        {"depends_on": "\ud800"},
        {"depends_on": "billing  api"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            app.consumer("orders", **wrong)(print)
    app.consumer("orders", breaker=Breaker(messages=3), budget=None, admission=Admission(share=0.5), depends_on="billing")(print)
