"""Consumers with one store act as one fleet. Each has its own control; clock and store are shared, and no thread runs."""

from itertools import pairwise

import pytest

from tests.unit.stores import Clock, opened, paused, too_many_dead
from unpoison.control.admission import PROBE_INTERVAL
from unpoison.control.breaker import RAMP_LASTS
from unpoison.control.budget import FLOOR
from unpoison.control.changes import Closed, OperatorPause, Resumed
from unpoison.control.evidence import End
from unpoison.control.options import ControlOptions
from unpoison.control.source import SourceControl
from unpoison.errors import ConfigError, StoreUnavailable
from unpoison.flow.store_link import EXCHANGE_BUSY, EXCHANGE_EVERY, SILENT_FOR, StoreLink
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery, PastAttempt
from unpoison.model.verdict import ErrorClassification
from unpoison.store.port import ADMISSION, FORGOTTEN, OPEN, OPERATOR, PAUSING
from unpoison.store.sql_store import ALIVE

BILLING = "billing:443"


class Member:
    """A consumer: its control, and its link to the store."""

    def __init__(self, url, clock, name="a:1", version=None, options=None):
        self.clock, self.rung = clock, 0
        self.control = SourceControl(options or ControlOptions())
        self.store = opened(url, clock)
        self.link = StoreLink(self.store, "orders", name, version, self.ring, monotonic=clock)
        self.numbers = iter(range(1_000_000))
        self.told = []

    def ring(self):
        self.rung += 1

    def turn(self):
        """What the consumer's thread does in each turn, before it starts anything."""
        self.link.sync(self.control)
        self.told += self.control.changes
        self.control.changes.clear()
        return self.control.room(self.clock())

    def exchange(self):
        """Both threads, one after the other: the store is told what there is, and its answer is taken over."""
        self.turn()
        pause = self.link.step()
        self.turn()
        return pause

    def start(self):
        delivery = Delivery(None, "orders", f"m{next(self.numbers)}", b"")
        self.control.admit([delivery], self.clock())
        return delivery

    def retries(self):
        """It has failed on the dependency before."""
        delivery = Delivery(None, "orders", f"m{next(self.numbers)}", b"", counters=_waits_for(BILLING))
        started, _ = self.control.admit([delivery], self.clock())
        return started[0]

    def fails(self, count=1, dependency=BILLING):
        for _ in range(count):
            failing = self.start()
            self.control.ended([], 1, self.clock())
            self.control.weigh(failing, _refused(dependency), self.clock())

    def succeeds(self, delivery=None):
        self.control.ended([delivery or self.start()], 0, self.clock())

    def too_many_dead(self):
        too_many_dead(self.control, self.clock())

    @property
    def open_circuits(self):
        return sorted(each.dependency for each in self.control.circuits if each.evidence is not None)


def _waits_for(dependency):
    return Counters(attempts=1, history=(PastAttempt(1, 0.0, "transient", "refused"),), waits_for=dependency, put_off=1)


def _refused(dependency):
    return Failure(
        classification=ErrorClassification.TRANSIENT,
        rule="refused",
        type_name="ConnectionError",
        text="refused",
        dependency=dependency,
        is_dependency_named=True,
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def member(tmp_path, clock):
    made = []

    def make(name="a:1", version=None, options=None):
        made.append(Member(f"sqlite:///{tmp_path}/fleet.db", clock, name, version, options))
        made[-1].exchange()
        return made[-1]

    yield make
    for each in made:
        each.store.close()


def down(member):
    """Everything fails on one dependency, for long enough that it pauses the source."""
    member.fails(10)
    member.clock.now += 1.01
    while member.control.circuits.pausing is None:
        member.fails()
    member.exchange()
    assert member.control.is_paused


# Outages


def test_an_outage_that_one_consumer_has_found_pauses_the_others_too(member):
    first, second = member("a:1"), member("b:2")
    down(first)
    second.exchange()
    assert second.open_circuits == [BILLING]
    assert second.control.is_paused
    assert second.control.pause.messages == 10, "with the evidence of the one that found it"
    assert second.turn() == 0


def test_where_other_messages_succeed_the_others_go_on_as_well(member):
    first, second = member("a:1"), member("b:2")
    first.fails(10)
    first.exchange()
    second.exchange()
    assert second.open_circuits == [BILLING]
    assert (second.control.is_paused, second.turn()) == (False, None)
    assert [each.state for each in first.store.circuits()] == [OPEN]


def test_that_hardly_anything_succeeds_any_more_is_heard_and_that_others_do_again(member, clock):
    first, second = member("a:1"), member("b:2")
    first.fails(10)
    first.exchange()
    second.exchange()
    down(first)
    second.exchange()
    assert [each.state for each in first.store.circuits()] == [PAUSING]
    assert second.control.is_paused
    first.succeeds()
    first.fails()
    assert not first.control.is_paused
    first.exchange()
    second.exchange()
    assert [each.state for each in first.store.circuits()] == [OPEN]
    assert not second.control.is_paused


def test_in_a_fleet_one_consumer_probes_at_a_time_and_never_two_within_a_second(member, clock):
    members = [member(f"a:{number}") for number in range(4)]
    down(members[0])
    for each in members:
        each.exchange()
    began, probes = clock.now, []
    while clock.now < began + 60:
        for each in members:
            each.exchange()
            if each.turn():
                probes.append(clock.now)
                each.fails()
        clock.now += 0.1
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert gaps[:5] == pytest.approx([2, 4, 8, 15, 15], abs=0.25)


def test_the_probe_of_one_consumer_serves_all(member, clock):
    first, second = member("a:1"), member("b:2")
    down(first)
    second.exchange()
    prober, other = first, second
    while not prober.turn():
        prober, other = other, prober
        clock.now += 0.25
        prober.exchange()
    assert other.turn() == 0
    prober.succeeds(prober.retries())
    clock.now += 31  # few messages come, so the ramp ends by its time
    prober.turn()
    prober.exchange()
    other.exchange()
    assert (prober.open_circuits, other.open_circuits) == ([], [])
    assert not other.control.is_paused
    assert list(first.store.circuits()) == []


def test_a_permission_to_probe_that_is_not_used_goes_to_another_consumer(member, clock):
    busy, free = member("a:1"), member("b:2")
    down(busy)
    free.exchange()
    clock.now += 1
    busy.exchange()
    free.exchange()
    assert (busy.turn(), free.turn()) == (1, 0)
    clock.now += 2
    assert busy.turn() == 0, "its time is over"
    free.exchange()
    busy.exchange()
    assert (busy.turn(), free.turn()) == (0, 1)


def test_consumers_that_have_nothing_to_probe_with_do_not_keep_the_probe_from_one_that_has(member, clock):
    """On Kafka, say, the backlog may be in the partitions of one consumer."""
    first, second, last = member("a:1"), member("b:2"), member("c:3")
    down(last)
    began, probes = clock.now, []
    while clock.now < began + 120:
        for each in (first, second, last):
            each.exchange()
        if last.turn():
            probes.append(clock.now)
            last.fails()
        clock.now += 0.1
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert probes[0] - began < 10
    assert max(gaps) <= 16


def test_where_the_clock_of_the_store_is_set_back_probes_go_on(member, clock):
    one, idle, back = member("a:1"), member("b:2"), 0.0
    one.store._database.now = idle.store._database.now = lambda run: clock() - back
    down(one)
    began, probes = clock.now, []
    while clock.now < began + 120:
        back = 3600.0 if clock.now >= began + 20 else 0.0
        idle.exchange()
        one.exchange()
        if one.turn():
            probes.append(clock.now)
            one.fails()
        clock.now += 0.5
    assert max(later - earlier for earlier, later in pairwise([*probes, clock.now])) <= 31


def test_an_outage_survives_a_restart(member, clock):
    first = member("a:1")
    down(first)
    again = member("a:2")
    assert again.control.is_paused, "before its first message"
    assert again.turn() == 0
    clock.now += 20
    again.exchange()
    assert again.turn() == 1


def test_a_consumer_that_is_started_anew_in_an_outage_begins_afterwards_with_the_rate_from_before(member, clock):
    first = member("a:1")
    for _ in range(60):
        clock.now += 1
        for _ in range(20):
            first.succeeds()
    down(first)
    again, started = member("a:2"), 0
    again.store.close_circuit("orders", BILLING)
    again.exchange()
    for _ in range(100):
        clock.now += 0.1
        started += again.turn()
        again.control.started([again.start()] * (again.turn() - 1), 0, clock.now)
    assert again.control.rate(clock.now) == pytest.approx(20, rel=0.2)
    assert 150 < started <= 10 * 2 * 21, "twice the rate, in ten seconds"


def test_an_outage_that_is_over_is_not_brought_back_by_a_consumer_that_hears_it_late(member, clock):
    first, second = member("a:1"), member("b:2")
    down(first)
    second.exchange()
    second.link.step()  # its answer still has the outage, and is taken over later
    clock.now += 2
    first.control.circuits.close(BILLING, clock.now)
    first.exchange()
    second.turn()
    second.link.step()
    assert list(first.store.circuits()) == []
    second.exchange()
    assert second.open_circuits == []
    assert list(first.store.circuits()) == []


def test_a_consumer_that_is_busy_for_long_does_not_tell_the_same_outage_twice(member):
    busy = member("a:1")
    busy.fails(10)
    busy.turn()
    busy.link.step()
    busy.store.close_circuit("orders", BILLING)
    busy.link.step()  # though its own thread has not yet heard that the store has it
    assert list(busy.store.circuits()) == []


def test_what_a_consumer_has_found_out_is_not_undone_by_an_answer_that_is_older(member, clock):
    first = member("a:1")
    down(first)
    first.link.step()  # the answer has the outage
    first.control.circuits.close(BILLING, clock.now)
    first.turn()
    assert first.open_circuits == []
    first.exchange()
    assert list(first.store.circuits()) == []


def test_that_others_succeed_again_is_not_undone_by_an_answer_that_is_older(member, clock):
    first = member("a:1")
    down(first)
    first.link.step()  # the answer says that hardly anything succeeds
    first.control.circuits.pausing = None
    first.turn()
    assert first.control.circuits.pausing is None
    first.exchange()
    assert [each.state for each in first.store.circuits()] == [OPEN]


def test_once_a_probe_has_succeeded_its_consumer_asks_for_no_other(member, clock):
    first = member("a:1")
    down(first)
    clock.now += 2
    first.exchange()
    assert first.turn() == 1
    probe = first.start()
    first.exchange()
    (before,) = first.store.circuits()
    first.succeeds(probe)
    clock.now += 20
    first.exchange()
    assert [each.next_probe_at for each in first.store.circuits()] == [before.next_probe_at]


@pytest.mark.parametrize("kind", [OPERATOR, ADMISSION])
def test_a_consumer_that_may_not_start_a_probe_asks_for_none(member, clock, kind):
    one = member()
    down(one)
    one.store.pause(paused(kind))
    one.exchange()
    (before,) = one.store.circuits()
    for _ in range(40):
        clock.now += 1
        one.exchange()
    assert [each.next_probe_at for each in one.store.circuits()] == [before.next_probe_at]
    one.store.resume("orders", "ada@desk")
    one.exchange()
    one.exchange()
    assert one.turn() == 1, "one is overdue"


def test_what_waited_does_not_start_all_at_once_where_another_consumer_has_found_that_the_outage_is_over(member, clock):
    first, second = member("a:1"), member("b:2")
    first.fails(10)
    first.exchange()
    second.exchange()
    for _ in range(60):
        second.succeeds()
        second.fails(5)
        clock.now += 1
    first.control.circuits.close(BILLING, clock.now)
    first.exchange()
    second.exchange()
    assert second.open_circuits == []
    waiting = [Delivery(None, "orders", f"w{number}", b"", counters=_waits_for(BILLING)) for number in range(300)]
    started, put_off = second.control.admit(waiting, clock.now)
    assert 1 <= len(started) <= 6, "as many a second as failed a second"
    assert 55 < max(each.after for each in put_off) < 65


def _outage_that_another_found(first, second, clock, seconds, each_second):
    """In which so many messages of the second consumer fail each second, and others succeed."""
    first.fails(10)
    first.exchange()
    second.exchange()
    for _ in range(seconds * each_second):
        clock.now += 1 / each_second
        second.succeeds()
        failing = second.start()
        second.control.ended([], 1, clock.now)
        second.control.weigh(failing, _refused(BILLING), clock.now)


def _ends(first, second, clock):
    first.control.circuits.close(BILLING, clock.now)
    first.exchange()
    second.exchange()
    assert second.open_circuits == []


def test_after_a_second_outage_that_another_has_found_what_waited_starts_at_the_rate_of_that_one(member, clock):
    first, second = member("a:1"), member("b:2")
    _outage_that_another_found(first, second, clock, 600, 20)
    _ends(first, second, clock)
    clock.now += 3_600
    _outage_that_another_found(first, second, clock, 60, 5)
    _ends(first, second, clock)
    waiting = [Delivery(None, "orders", f"w{number}", b"", counters=_waits_for(BILLING)) for number in range(300)]
    started, put_off = second.control.admit(waiting, clock.now)
    assert 1 <= len(started) <= 6, "five a second failed"
    assert 55 < max(each.after for each in put_off) < 65


def test_an_outage_in_which_others_go_on_ends_for_all_though_no_more_messages_wait_for_it(member, clock):
    first, second = member("a:1"), member("b:2")
    first.fails(10)
    first.exchange()
    second.exchange()
    clock.now += 2
    first.exchange()
    waiting = Delivery(None, "orders", "waiting", b"", counters=_waits_for(BILLING))
    started, _ = first.control.admit([waiting], clock.now)
    assert started == [waiting]
    first.succeeds(waiting)
    clock.now += RAMP_LASTS + 1
    first.exchange()
    first.exchange()
    second.exchange()
    assert (first.open_circuits, second.open_circuits, list(first.store.circuits())) == ([], [], [])


def test_who_only_hears_of_an_outage_does_not_forget_it_while_others_find_it_there(member, clock):
    first, second = member("a:1"), member("b:2")
    first.fails(10)
    for _ in range(30):
        first.exchange()
        second.exchange()
        clock.now += 60
        first.fails()
    assert second.open_circuits == [BILLING]
    for _ in range(30):
        first.exchange()
        second.exchange()
        clock.now += 60
    assert (first.open_circuits, second.open_circuits) == ([], []), "nobody has heard of it for 20 minutes"


def test_a_person_who_ends_an_outage_in_the_store_ends_it_for_all(member):
    first, second = member("a:1"), member("b:2")
    down(first)
    second.exchange()
    first.store.close_circuit("orders", BILLING)
    first.exchange()
    second.exchange()
    assert (first.open_circuits, second.open_circuits) == ([], [])
    assert list(first.store.circuits()) == []


def test_how_an_outage_ended_is_told_as_far_as_it_is_known(member, clock):
    first, second = member("a:1"), member("b:2")
    for ends in (End.TOLD, End.FORGOTTEN):
        first.fails(10)
        first.exchange()
        second.exchange()
        if ends is End.TOLD:
            first.store.close_circuit("orders", BILLING)
        clock.now += FORGOTTEN + 1 if ends is End.FORGOTTEN else 1
        for each in (first, second):
            each.told.clear()
            each.exchange()
            assert [change.end for change in each.told if isinstance(change, Closed)] == [ends]


def test_while_a_person_has_paused_the_source_no_outage_of_it_is_forgotten(member, clock):
    one = member()
    down(one)
    one.store.pause(paused())
    for _ in range(60):
        one.exchange()
        clock.now += 60
    assert (one.open_circuits, len(one.store.circuits())) == ([BILLING], 1)
    one.store.resume("orders", "ada@desk")
    one.exchange()
    one.exchange()
    assert (one.open_circuits, len(one.store.circuits())) == ([BILLING], 1), "nothing could be heard of it"
    assert not any(isinstance(change, Closed) for change in one.told)


def test_a_consumer_without_a_breaker_follows_no_outage(member):
    first, second = member("a:1"), member("b:2", options=ControlOptions(breaker=None))
    down(first)
    second.exchange()
    assert (second.control.is_paused, second.turn()) == (False, None)
    assert len(first.store.circuits()) == 1


# Pauses


def test_an_operators_pause_is_heard_and_so_is_its_end(member):
    one = member()
    one.store.pause(paused(reason="stock-taking", by="ada@desk"))
    one.exchange()
    assert isinstance(one.control.pause, OperatorPause)
    assert (one.control.pause.by, one.control.pause.reason, one.turn()) == ("ada@desk", "stock-taking", 0)
    one.store.resume("orders", "ada@desk")
    one.exchange()
    assert one.control.pause is None


def test_a_person_who_resumes_a_source_that_has_two_reasons_to_be_paused_is_told_of_no_third(member):
    one = member()
    down(one)
    one.store.pause(paused())
    one.exchange()
    one.store.resume("orders", "ada@desk")
    one.store.close_circuit("orders", BILLING)
    one.told.clear()
    one.exchange()
    assert [type(change) for change in one.told] == [Closed, Resumed]


@pytest.mark.parametrize("kind", [OPERATOR, ADMISSION])
def test_the_time_of_a_pause_before_a_restart_makes_no_message_older_either(member, clock, kind):
    first = member("a:1")
    first.store.pause(paused(kind))
    clock.now += 60 * 3600
    again = member("a:2")
    assert again.control.is_paused
    clock.now += 3600
    first.store.resume("orders", "ada@desk")
    again.exchange()
    assert [again.control.paused_for(hours * 3600, clock.now) / 3600 for hours in (1, 50, 100)] == [1, 50, 61]
    (resumed,) = (change for change in again.told if isinstance(change, Resumed))
    assert resumed.seconds == 61 * 3600


def test_too_many_dead_letters_in_one_consumer_pause_the_others(member):
    first, second = member("a:1", "1.0"), member("b:2", "1.0")
    first.too_many_dead()
    first.exchange()
    second.exchange()
    (stored,) = first.store.pauses()
    assert (stored.kind, stored.by, stored.code_version) == (ADMISSION, "a:1", "1.0")
    assert "were to become dead letters (KeyError: total)" in stored.reason
    assert (second.control.pause.dead, second.control.pause.samples) == (51, ("KeyError: total",))
    assert second.turn() == 0


def test_the_first_message_that_succeeds_again_resumes_all(member, clock):
    first, second = member("a:1"), member("b:2")
    first.too_many_dead()
    first.exchange()
    second.exchange()
    clock.now += PROBE_INTERVAL
    assert second.turn() == 1
    second.succeeds()
    second.exchange()
    first.exchange()
    assert (first.control.pause, second.control.pause) == (None, None)
    assert list(first.store.pauses()) == []


def letters_until_paused(member):
    """How many messages of a member that fails at everything become dead letters."""
    bug = Failure(classification=ErrorClassification.BUG, rule="bug", type_name="KeyError", text="total")
    letters = 0
    while member.control.pause is None:
        letters += member.control.refuses_letter(member.start(), bug, member.clock()) is None
    return letters


def test_after_a_probe_all_consumers_are_on_probation_and_probe_less_often_once_one_relapses(member, clock):
    first, second = member("a:1"), member("b:2")
    first.too_many_dead()
    first.exchange()
    second.exchange()
    clock.now += PROBE_INTERVAL
    assert second.turn() == 1
    second.succeeds()
    second.exchange()
    first.exchange()
    assert (first.control.pause, letters_until_paused(first)) == (None, 0)
    first.exchange()
    second.exchange()
    assert [each.control.admission.next_probe_in(clock.now) for each in (first, second)] == [2 * PROBE_INTERVAL] * 2
    assert member("c:3").control.admission.next_probe_in(clock.now) == 2 * PROBE_INTERVAL, "also after a restart"


def test_after_too_many_dead_letters_each_consumer_probes_by_itself_and_the_reason_says_so(member, clock):
    members = [member(f"{name}:1") for name in "abcde"]
    members[0].too_many_dead()
    for each in members:
        each.exchange()
    clock.now += PROBE_INTERVAL
    assert [each.turn() for each in members[1:]] == [1] * 4
    (pause,) = members[0].store.pauses()
    assert "each consumer tries one message every 60 s" in pause.reason


def test_a_person_gives_the_letters_back_to_all_consumers(member, clock):
    first, second = member("a:1"), member("b:2")
    first.too_many_dead()
    first.exchange()
    second.exchange()
    for _ in range(2):
        clock.now += 1
        first.store.resume("orders", "ada@desk")
        first.exchange()
        second.exchange()
        assert [letters_until_paused(each) for each in (first, second)] == [50, 50]
        first.exchange()
        second.exchange()


def test_a_new_code_version_has_all_its_letters(member, clock):
    old = member("a:1", "1.0")
    old.too_many_dead()
    old.exchange()
    clock.now += 1
    new = member("b:2", "1.1")
    new.exchange()
    assert letters_until_paused(new) == 50


def test_a_person_resumes_all(member):
    first, second = member("a:1"), member("b:2")
    first.too_many_dead()
    first.exchange()
    second.exchange()
    first.store.resume("orders", "ada@desk")
    first.exchange()
    second.exchange()
    assert (first.control.pause, second.control.pause) == (None, None)
    first.exchange()
    assert list(first.store.pauses()) == [], "nobody tells it again"


def test_a_new_code_version_is_not_paused_and_ends_the_pause_once_the_old_one_is_gone(member, clock):
    old = member("a:1", "1.0")
    old.too_many_dead()
    old.exchange()
    clock.now += 1
    new = member("b:2", "1.1")
    new.exchange()
    assert (new.control.pause, new.turn()) == (None, None)
    old.exchange()
    assert old.control.pause is not None, "what it runs is still broken"
    clock.now += ALIVE + 1
    new.exchange()
    assert list(new.store.pauses()) == []


@pytest.fixture
def rolling_out(member, clock):
    """Consumers with the old version, which works, and the new one, which has paused the source."""
    old = member("a:1", "1.0")
    clock.now += 1
    new = member("b:2", "1.1")
    new.too_many_dead()
    new.exchange()
    old.exchange()
    assert old.control.is_paused, "it may be the messages that are new"
    clock.now += PROBE_INTERVAL
    new.exchange()
    assert old.turn() == 1
    old.succeeds()
    return old, new


def test_a_message_that_succeeds_with_the_old_version_does_not_resume_the_new_one_that_is_broken(rolling_out, clock):
    old, new = rolling_out
    for _ in range(10):
        old.exchange()
        new.exchange()
        clock.now += 1
    assert not old.control.is_paused, "it works"
    assert new.control.is_paused
    assert [each.code_version for each in new.store.pauses()] == ["1.1"]


def test_after_a_rollback_the_pause_of_the_version_that_is_gone_ends(rolling_out, clock):
    old, new = rolling_out
    old.exchange()
    new.store.leave("b:2", "orders")
    old.exchange()
    old.exchange()
    assert list(old.store.pauses()) == []
    assert not old.control.is_paused


def test_a_version_that_was_found_to_work_and_then_breaks_is_paused_though_the_other_one_still_is(rolling_out, clock):
    old, new = rolling_out
    old.exchange()
    assert not old.control.is_paused
    old.too_many_dead()
    for _ in range(5):
        old.exchange()
        new.exchange()
        assert old.control.is_paused


def test_a_version_that_was_found_to_work_is_paused_by_the_next_pause_all_the_same(rolling_out, clock):
    old, new = rolling_out
    old.exchange()
    new.store.resume("orders", "ada@desk")
    new.exchange()
    clock.now += 1
    new.too_many_dead()
    new.exchange()
    old.exchange()
    assert old.control.is_paused


def test_a_new_process_with_the_same_version_stays_paused(member, clock):
    old = member("a:1", "1.0")
    old.too_many_dead()
    old.exchange()
    old.store.leave("a:1", "orders")
    clock.now += 1
    assert member("a:2", "1.0").turn() == 0


def test_if_the_new_version_is_broken_too_its_own_pause_holds(member, clock):
    old = member("a:1", "1.0")
    old.too_many_dead()
    old.exchange()
    clock.now += 1
    new, newer = member("b:2", "1.1"), member("b:3", "1.1")
    new.too_many_dead()
    new.exchange()
    newer.exchange()
    assert [each.code_version for each in new.store.pauses()] == ["1.1"]
    assert newer.control.pause is not None


def test_the_retries_that_are_always_allowed_are_shared_by_all_that_live(member):
    first, second = member("a:1"), member("b:2")
    first.exchange()
    assert second.control._budget._floor == first.control._budget._floor == FLOOR / 2


# The store goes away


class Away:
    """Stands for a store that does not answer."""

    def __init__(self, store):
        self.store, self.is_away, self.opened = store, False, 0

    def open(self, *, create=True):
        self.opened += 1
        if self.is_away:
            raise StoreUnavailable("The store at 'postgresql://db/shop' cannot be used: connection refused.")
        self.store.open(create=create)

    def __getattr__(self, name):
        if self.is_away:
            raise StoreUnavailable("The store at 'postgresql://db/shop' cannot be used: connection refused.")
        return getattr(self.store, name)


@pytest.fixture
def unreliable(member, caplog):
    caplog.set_level("INFO", "unpoison")
    one = member()
    one.link._first.set()  # its first exchange is over
    one.link._store = Away(one.store)
    return one


def lines(caplog):
    return [(record.event, record.getMessage()) for record in caplog.records if "store" in getattr(record, "event", "")]


def test_while_the_store_is_away_the_consumer_goes_on_and_says_so_once(unreliable, clock, caplog):
    unreliable.link._store.is_away = True
    for _ in range(5):
        assert unreliable.exchange() == EXCHANGE_EVERY
    assert [event for event, _ in lines(caplog)] == ["store-away"]
    assert "Source 'orders': The store at 'postgresql://db/shop' cannot be used: connection refused. " in lines(caplog)[0][1]
    unreliable.link._store.is_away = False
    unreliable.exchange()
    unreliable.exchange()
    assert [event for event, _ in lines(caplog)] == ["store-away", "store-back"]


def test_while_the_store_is_away_a_consumer_probes_by_itself(unreliable, clock):
    down(unreliable)
    clock.now += 2
    assert unreliable.turn() == 0, "it has no permission yet"
    unreliable.link._store.is_away = True
    unreliable.exchange()
    assert unreliable.turn() == 1


def test_a_store_that_says_nothing_counts_as_away(unreliable, clock):
    down(unreliable)
    unreliable.link._asking_since = clock.now
    clock.now += 2
    assert unreliable.turn() == 0
    clock.now += SILENT_FOR
    assert unreliable.turn() == 1


def test_what_happened_meanwhile_is_told_once_the_store_is_back(unreliable, member):
    other = member("b:2")
    unreliable.link._store.is_away = True
    unreliable.exchange()
    unreliable.too_many_dead()
    unreliable.exchange()
    assert list(other.store.pauses()) == []
    unreliable.link._store.is_away = False
    unreliable.exchange()
    other.exchange()
    assert other.control.pause is not None


def test_a_pause_that_was_heard_holds_while_the_store_is_away(unreliable):
    unreliable.store.pause(paused())
    unreliable.exchange()
    unreliable.link._store.is_away = True
    unreliable.exchange()
    assert isinstance(unreliable.control.pause, OperatorPause)


def test_tables_that_are_gone_in_the_middle_are_a_store_that_is_away(unreliable, caplog):
    def refuse(*given):
        raise ConfigError("'shop.db' has no store tables of unpoison.")

    unreliable.link._store.exchange = refuse
    unreliable.exchange()
    assert [event for event, _ in lines(caplog)] == ["store-away"]


def test_a_fault_of_our_own_is_a_store_that_is_away(unreliable, caplog):
    unreliable.link._store.exchange = lambda *given: 1 / 0
    unreliable.exchange()
    assert [event for event, _ in lines(caplog)] == ["store-fault", "store-away"]


# How often


def test_an_idle_consumer_asks_now_and_then_and_wakes_only_for_news(member, clock):
    one = member()
    rung = one.rung
    assert one.exchange() == EXCHANGE_EVERY
    assert one.rung == rung
    one.store.pause(paused())
    one.exchange()
    assert one.rung == rung + 1
    assert one.exchange() == EXCHANGE_BUSY


def test_while_a_dependency_is_down_the_next_exchange_is_when_the_next_probe_is_due(member, clock):
    one = member()
    down(one)
    (circuit,) = one.store.circuits()
    clock.now = circuit.next_probe_at - 0.2
    assert one.exchange() == pytest.approx(0.2)
