"""Of a fleet one process tells a thing: what the store says, on SQLite and PostgreSQL, and what is done without it."""

import threading

import pytest

from tests.notified import notice
from tests.unit.stores import Clock, new_store
from unpoison.notifying.claiming import AGAIN_AFTER, Claims
from unpoison.notifying.limits import MOST, MOST_OF_LETTERS, PERIOD, WINDOW
from unpoison.notifying.notice import Kind
from unpoison.store.choice import database_for
from unpoison.store.notices import KEPT, UNSENT, ToldNotices


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return new_store(request, tmp_path)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def process(url, clock):
    """Makes one process after another, all with this store."""
    made = []

    def one(by="a:1"):
        told = ToldNotices(database_for(url, is_queue=True), by)
        told._database.now = lambda run: clock()
        made.append(Claims(told, clock=clock))
        return made[-1]

    yield one
    for each in made:
        each.close()


PAUSE = notice(kind=Kind.PAUSED, subject="paused|orders|", size=60.0)
OVER = notice(kind=Kind.RESUMED, subject="paused|orders|", is_end=True)
AGAIN = notice(kind=Kind.PAUSED, subject="paused|orders|", size=600.0, is_again=True)


def tell(claims, *notices, is_sent=True):
    granted = claims.granted(notices)
    claims.expect("1", [each.subject for each in granted], 1)
    claims.answered("1", is_sent)
    return granted


def test_a_new_group_is_told_by_one_process_and_not_again_after_a_restart(process, clock):
    first, second = process("a:1"), process("b:2")
    both = [notice(), notice(subject="group|2-other")]
    assert tell(first, both[0]) == [both[0]]
    assert tell(second, *both) == [both[1]]
    clock.now += 30 * 86_400
    assert tell(process("c:3"), *both) == []
    clock.now += KEPT
    assert tell(process("d:4"), *both) == both, "after so long it is new again"


def test_a_pause_is_told_once_an_hour_and_its_end_by_one_process(process, clock):
    first, second = process("a:1"), process("b:2")
    assert tell(first, PAUSE) == [PAUSE]
    assert tell(second, PAUSE) == []
    assert tell(second, OVER) == [OVER]
    assert tell(first, OVER) == []
    clock.now += PERIOD - 1
    assert tell(first, PAUSE) == []
    assert tell(first, OVER) == [], "nobody was told that it began"
    clock.now += 1
    assert tell(second, PAUSE) == [PAUSE]


def test_what_lasts_is_told_again_only_when_it_is_ten_times_worse(process, clock):
    first, second = process("a:1"), process("b:2")
    tell(first, PAUSE)
    clock.now += 2 * PERIOD
    assert tell(first, notice(kind=Kind.PAUSED, subject=PAUSE.subject, size=599.0, is_again=True)) == []
    assert tell(second, AGAIN) == [AGAIN]
    assert tell(first, AGAIN) == []


def test_what_could_not_be_sent_may_be_told_by_another_process(process):
    first, second = process("a:1"), process("b:2")
    tell(first, notice(), is_sent=False)
    assert tell(second, notice()) == [notice()]


def test_what_a_process_claimed_that_was_killed_before_it_was_sent_is_told_later(process, clock):
    assert process("a:1").granted([notice()]) == [notice()]
    second = process("b:2")
    clock.now += UNSENT - 1
    assert second.granted([notice()]) == []
    clock.now += 1
    assert second.granted([notice()]) == [notice()]


def test_with_several_targets_one_that_takes_it_is_enough(process):
    first, second = process("a:1"), process("b:2")
    first.granted([notice()])
    first.expect("1", [notice().subject], 2)
    first.answered("1", False)
    first.answered("1", True)
    assert second.granted([notice()]) == []


def test_a_clock_that_was_set_back_silences_nothing_for_long(process, clock):
    claims = process()
    tell(claims, PAUSE)
    clock.now -= 86_400
    assert tell(claims, PAUSE) == [PAUSE]


def test_a_fleet_has_room_for_so_many_notices_together(process, clock):
    first, second = process("a:1"), process("b:2")
    clock.now = 100 * WINDOW
    letters = [each.has_room(notice()) for _ in range(MOST_OF_LETTERS) for each in (first, second)]
    assert letters.count(True) == MOST_OF_LETTERS
    assert [first.has_room(PAUSE) for _ in range(MOST)].count(True) == MOST - MOST_OF_LETTERS
    summary = notice(kind=Kind.SUMMARY)
    assert [first.has_room(summary), second.has_room(summary)] == [True, False]
    clock.now += WINDOW
    assert second.has_room(notice())
    assert second.has_room(summary)


def test_of_many_that_ask_at_once_one_tells(url):
    gate, granted = threading.Barrier(6), []

    def ask(number):
        claims = Claims(ToldNotices(database_for(url, is_queue=True), f"a:{number}"))
        claims.has_room(notice())
        gate.wait()
        granted.extend(claims.granted([notice(subject=f"group|2-{n}") for n in range(20)]))
        claims.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.subject for each in granted) == sorted(f"group|2-{n}" for n in range(20))


def test_without_a_store_or_while_it_is_away_each_process_tells_by_itself(tmp_path, caplog):
    clock = Clock()
    assert Claims(None).granted([notice(), OVER]) == [notice(), OVER]
    assert Claims(None).has_room(notice())
    away = Claims(ToldNotices(database_for(f"sqlite:///{tmp_path}/missing/fleet.db", is_queue=True), "a:1"), clock=clock)
    assert tell(away, notice(), OVER) == [notice(), OVER]
    assert away.has_room(notice())
    clock.now += AGAIN_AFTER
    assert tell(away, notice()) == [notice()]
    (line,) = caplog.records
    assert "each process tells by itself" in line.getMessage()
    (tmp_path / "missing").mkdir()
    clock.now += AGAIN_AFTER
    assert tell(away, notice()) == [notice()]
    assert tell(away, notice()) == []
    away.close()
