"""A consumer that has just taken a partition over starts few messages before what became of them is confirmed."""

from tests.unit.test_kafka_partition import Read
from unpoison.brokers.kafka.partition import Partition
from unpoison.brokers.kafka.slow_start import AFTER_A_LOSS, AT_FIRST, SlowStart

A_STEP = AFTER_A_LOSS * 1.01


class Owner:
    """A partition of sixty messages that may all be started, with a clock of its own."""

    def __init__(self, messages=60):
        self.now = 100.0
        self.partition = Partition("orders", 0)
        self.partition.take_over(-1001, None)
        self.partition.slow_start = SlowStart(AFTER_A_LOSS, lambda: self.now)
        self.partition.ready.extend(self.partition.arrive([Read(at) for at in range(messages)]))

    def given(self):
        return [record.offset() for record in self.partition.take(1_000)]

    def confirm(self):
        position = self.partition.position()
        self.partition.note_sent()
        self.partition.confirm(position)


def test_at_first_only_a_few_are_given_and_no_more_while_they_run():
    owner = Owner()
    assert owner.given() == list(range(AT_FIRST))
    assert owner.given() == []


def test_what_is_done_makes_room_only_once_that_is_confirmed():
    owner = Owner()
    first = owner.given()
    owner.partition.finish_all(first[:4])
    for offset in first[4:]:
        owner.partition.finish(offset)
    assert owner.given() == [], "a kill now would repeat these, so no others are to be repeated with them"
    owner.confirm()
    assert owner.given() == list(range(AT_FIRST, 2 * AT_FIRST))


def test_what_is_done_while_a_commit_is_on_its_way_waits_for_the_next_one():
    owner = Owner()
    first = owner.given()
    owner.partition.finish_all(first[:4])
    position = owner.partition.position()
    owner.partition.note_sent()
    owner.partition.finish_all(first[4:])
    owner.partition.confirm(position)
    assert len(owner.given()) == 4


def test_a_commit_that_fails_makes_no_room_and_the_next_one_tells_of_everything():
    owner = Owner()
    owner.partition.finish_all(owner.given())
    owner.partition.note_sent()
    owner.partition.unmark_failed()
    assert owner.given() == []
    owner.confirm()
    assert len(owner.given()) == AT_FIRST


def test_slow_handlers_do_not_wait_for_each_other():
    owner = Owner(messages=2_000)
    counts = [len(owner.given())]
    for _ in range(4):
        owner.now += A_STEP
        counts.append(len(owner.given()))
    assert counts == [8, 8, 16, 32, 64]
    assert not owner.partition.slow_start.is_over
    owner.now += 3 * A_STEP
    assert owner.partition.slow_start.is_over


def test_who_was_held_back_is_told_once_when_there_is_room_again():
    owner = Owner()
    slow_start = owner.partition.slow_start
    assert not slow_start.has_grown(), "nobody was held back"
    owner.given()
    assert not slow_start.has_grown()
    owner.now += A_STEP
    assert [slow_start.has_grown(), slow_start.has_grown()] == [True, False]


def test_without_a_slow_start_all_are_given_at_once():
    owner = Owner()
    owner.partition.slow_start = None
    assert len(owner.given()) == 60
