"""Whatever becomes of the messages of a partition, in whatever order: what is committed leaves none of them out."""

from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.partition import Partition


@dataclass(frozen=True)
class Read:
    """A record as the client gives it. Every other one has no body, and is false."""

    at: int

    def offset(self):
        return self.at

    def __len__(self):
        return self.at % 2


class Owner:
    """A partition, with a server that confirms what is committed, and a list of what is not done. `before` is what the last owner
    has committed."""

    def __init__(self, before=None):
        self.partition = Partition("orders", 0)
        self.partition.take_over(-1001 if before is None else 0, before)
        self.unfinished, self.written = set(self.partition.expected), 0
        self.lost = {offset: level for offset, level in self.partition.expected.items() if level}

    def arrive(self, rests):
        record = Read(self.written)
        self.written += 1
        for new in self.partition.arrive([record]):
            self.unfinished.add(record.at)
            self.partition.size += len(record)
            if rests:
                self.partition.rest(new)
            else:
                self.partition.fresh.append(new)

    def wake(self, which):
        if resting := sorted(self.partition.resting):
            self.partition.wake_up(resting[which % len(resting)])

    def commit(self, is_confirmed, grant=int):
        part = self.partition
        part.mark(grant)
        self.check(part.position())
        if is_confirmed:
            part.confirmed = part.position()
            part.free()
        else:
            part.unmark_failed()

    def commit_few(self, most):
        """While the source is paused, and so many are asked for."""
        self.commit(is_confirmed=True, grant=lambda count: min(count, most))

    def unmark(self, _):
        self.partition.unmark()
        assert [*self.partition.ready, *self.partition.marking] == []

    def give(self, most):
        self.partition.take(most % 4)
        state = (
            commit_metadata.decode(*self.partition.confirmed)
            if self.partition.confirmed
            else commit_metadata.CommittedState({}, set(), 0, {})
        )
        assert set(self.partition.running) <= state.started, "started above the last confirmed mark"

    def settle(self, which):
        if held := sorted(self.partition.running):
            self.unfinished.discard(held[which % len(held)])
            self.partition.finish_all([held[which % len(held)]])

    def put_back(self, which):
        if held := sorted(self.partition.running):
            self.partition.put_back(held[which % len(held)])

    def check(self, position):
        if position is None:
            return
        state = commit_metadata.decode(*position)
        lost = {offset for offset in self.unfinished if offset < state.top and offset not in state.losses}
        assert not lost, f"{position} leaves out {sorted(lost)}"
        forgotten = {offset for offset in self.unfinished & self.lost.keys() if state.losses.get(offset, 0) < self.lost[offset]}
        assert not forgotten, f"{position} does not say that {sorted(forgotten)} were lost before"


NAMES = ["arrive", "wake", "commit", "commit_few", "unmark", "give", "settle", "put_back"]
STEPS = st.tuples(st.sampled_from(NAMES), st.integers(0, 7))
BEFORE = st.sampled_from([None, "unpoison/1 A.BC2.3bA", "unpoison/1 5B"])


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=80), st.sampled_from([commit_metadata.LONGEST, 70, 50]), BEFORE)
def test_what_is_committed_leaves_nothing_out_that_is_not_done(steps, room, before):
    with patch.object(commit_metadata, "LONGEST", room):  # also where what is to be said does not fit
        owner = Owner(before)
        for name, number in steps:
            argument = number % 2 == 0 if name in ("arrive", "commit") else number
            getattr(owner, name)(argument)
            owner.check(owner.partition.position())


def test_one_whose_time_comes_later_but_stands_earlier_is_not_left_out():
    owner = Owner()
    for _ in range(6):
        owner.arrive(rests=True)
    for offset in (5, 3, 4):
        owner.partition.wake_up(offset)
        owner.commit(is_confirmed=True)
    for offset in (0, 1, 2):
        owner.unfinished.discard(offset)
        owner.partition.finish(offset)
    assert owner.partition.first_unfinished == 3
    owner.check(owner.partition.position())


def test_what_was_about_to_start_and_is_not_any_more_needs_no_word():
    owner = Owner()
    for _ in range(3_000):
        owner.arrive(rests=False)
    owner.commit(is_confirmed=True)
    owner.partition.take(3)
    owner.settle(1)
    owner.unmark(0)
    assert owner.partition.position() == (0, "unpoison/1 A.A")
    owner.settle(0)
    owner.settle(0)
    assert owner.partition.position() == (3, "unpoison/1 ")
    owner.commit_few(1)
    assert owner.partition.position() == (3, "unpoison/1 1A")
    assert [record.offset() for record in owner.partition.take(2)] == [3]


def test_one_that_was_lost_before_is_still_named_when_it_is_not_about_to_start_any_more():
    owner = Owner("unpoison/1 2A")
    for _ in range(5):
        owner.arrive(rests=False)
    owner.commit(is_confirmed=True)
    owner.partition.unmark()
    assert owner.partition.position() == (0, "unpoison/1 2b")


def test_what_the_log_has_no_more_does_not_hold_up_what_it_has():
    part = Partition("orders", 0)
    part.take_over(120, "unpoison/1 A3.2A")
    part.fresh.extend(part.arrive([Read(200), Read(201)]))
    assert part.first_unfinished == 200
