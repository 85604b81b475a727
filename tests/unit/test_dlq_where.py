"""`DLQManager` with a filter: which letters does it take, and how often does it read them?"""

import time
from contextlib import contextmanager

import pytest

from unpoison import App, BrokerUnavailable, BulkStopped, DLQManager, Filter, FilterError, deadletters
from unpoison.brokers import broker_for, dead_letters_for
from unpoison.model.message import Outgoing
from unpoison.port.broker import Dead, Settlement
from unpoison.testing import given

LETTERS = 12
"""Bodies are {"n": 0} to {"n": 11}."""


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    add(url, range(LETTERS))
    return url


def add(url, numbers, source="orders"):
    broker = broker_for(url)
    broker.open([source])
    broker.publish([Outgoing(f"m-{n}", source, f'{{"n": {n}}}'.encode()) for n in numbers])
    broker.close()
    give_up(url, len(numbers), source)


def give_up(url, count, source="orders"):
    broker = broker_for(url)
    broker.open([source])
    broker.settle(Settlement(dead=[Dead(each, given.letter_of(each)) for each in broker.fetch(source, count)]))
    broker.close()


class Counted:
    """The letters of a DLQ, and what was asked of it."""

    def __init__(self, letters):
        self.letters, self.asked = letters, []

    def __getattr__(self, name):
        found = getattr(self.letters, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            self.asked.append(name)
            return found(*arguments, **options)

        return call


@pytest.fixture
def counted(url):
    letters = Counted(dead_letters_for(url, "orders", create=False))
    yield letters
    letters.broker.close()


@pytest.fixture
def dlq(counted):
    return DLQManager(counted, "orders")


def numbers(letters):
    return [int(letter.message.id.removeprefix("m-")) for letter in letters]


def waiting(dlq):
    return numbers(dlq.letters())


def test_letters_that_match_come_oldest_first_and_no_more_are_read_than_needed(dlq, counted, monkeypatch):
    monkeypatch.setattr(deadletters, "LOOK", 4)
    assert numbers(dlq.letters(where="body.n>=3 body.n!=5")) == [3, 4, 6, 7, 8, 9, 10, 11]
    counted.asked.clear()
    assert numbers(dlq.letters(where=Filter.parse("body.n>=3"), limit=2)) == [3, 4]
    assert counted.asked.count("browse") == 2
    assert dlq.count("body.n<5") == 5
    assert dlq.count() == LETTERS


def test_a_filter_that_cannot_be_read_is_refused_before_anything_is(dlq, counted):
    for call in (dlq.letters, dlq.select, dlq.count, dlq.replay_all, dlq.discard_all, dlq.purge):
        with pytest.raises(FilterError, match="Did you mean 'source'"):
            call(where="sorce:orders")
    assert counted.asked == []


def test_what_can_have_no_match_is_not_read(dlq, counted):
    assert list(dlq.letters(where="source:emails body.n:1")) == []
    assert dlq.replay_all(where="source:emails").count == 0
    assert dlq.discard_all(where="-source:orders").count == 0
    assert counted.asked.count("browse") == 0


def test_only_letters_that_match_are_replayed(dlq):
    result = dlq.replay_all(where="body.n<3 or body.n:7")
    assert (result.count, result.gone) == (4, ())
    assert waiting(dlq) == [3, 4, 5, 6, 8, 9, 10, 11]
    assert numbers(dlq.letters("replayed")) == [0, 1, 2, 7]
    assert not dlq.replay_all(where="body.n<3")


def test_what_fails_again_meanwhile_is_no_part_of_a_replay(dlq, url, monkeypatch):
    monkeypatch.setattr(deadletters, "LOOK", 4)
    dlq.page = 2
    joined = []

    def meanwhile(done, total):
        assert total in (LETTERS, 6)  # of reading, then of replaying
        if done and not joined:
            joined.append(add(url, range(2, 4)))  # while the rest of the DLQ is still unread
        if total == 6 and done == 2:
            give_up(url, 2)  # the two that have just been sent

    assert dlq.replay_all(meanwhile, where="body.n<6").count == 6
    assert waiting(dlq) == [6, 7, 8, 9, 10, 11, 2, 3, 0, 1]


def test_a_selection_stays_what_it_was_whatever_happens_before_it_is_acted_on(dlq, url):
    chosen = dlq.select("body.n<4")
    assert (chosen.count, len(chosen.ids), bool(chosen)) == (4, 4, True)
    add(url, range(1))
    with App(url).dlq("orders") as other:
        other.replay_one(chosen.ids[1])
    result = dlq.replay_all(where=chosen)
    assert result.replayed == (chosen.ids[0], *chosen.ids[2:])
    assert result.gone == chosen.ids[1:2]
    assert waiting(dlq) == [4, 5, 6, 7, 8, 9, 10, 11, 0]


def test_a_replay_reads_each_letter_once_and_then_works_by_ids(dlq, counted, monkeypatch):
    monkeypatch.setattr(deadletters, "LOOK", 4)
    dlq.page = 5
    assert dlq.replay_all(where="body.n>=0").count == LETTERS
    assert counted.asked.count("browse") == LETTERS / 4 + 1  # the last one finds nothing
    assert counted.asked.count("ids") == 0
    assert counted.asked.count("replay") == 3


def test_letters_that_match_are_discarded_and_stay_visible(dlq):
    result = dlq.discard_all(where="body.n:1 or body.n:2")
    assert (result.count, bool(result), result.gone) == (2, True, ())
    assert numbers(dlq.letters("discarded")) == [1, 2]
    assert dlq.count() == LETTERS - 2
    assert dlq.discard_all().count == LETTERS - 2


def test_a_purge_takes_letters_in_every_state_unless_the_filter_names_one(dlq):
    dlq.discard_all(where="body.n<4")
    dlq.replay_all(where="body.n:4")
    purged = dlq.purge(where="body.n:0 or body.n:4 or body.n:5")
    assert (purged.purged, purged.history) == (1, 2)
    purged = dlq.purge(where="-state:dead")
    assert (purged.purged, purged.history) == (0, 3)
    assert numbers(dlq.letters(None)) == [6, 7, 8, 9, 10, 11]


def test_with_a_filter_the_history_is_not_purged_as_a_whole(url):
    class Quick(Counted):
        def purge_history(self):
            self.asked.append("purge_history")
            return 0

    letters = Quick(dead_letters_for(url, "orders", create=False))
    dlq = DLQManager(letters, "orders")
    dlq.discard_all(where="body.n<4")
    assert dlq.purge(where="body.n<2").history == 2
    assert "purge_history" not in letters.asked
    dlq.purge()
    assert "purge_history" in letters.asked
    letters.broker.close()


def test_a_filter_that_names_a_state_decides_which_are_meant(dlq):
    dlq.discard_all(where="body.n<2")
    assert numbers(dlq.letters(where="state:discarded")) == [0, 1]
    assert numbers(dlq.letters(where="state:* body.n<4")) == [0, 1, 2, 3]
    assert numbers(dlq.letters(where="body.n<4")) == [2, 3]
    assert numbers(dlq.letters(None, where="body.n<4")) == [0, 1, 2, 3]
    assert numbers(dlq.letters("discarded", where="state:*")) == [0, 1]
    assert dlq.count("state:discarded") == 2
    assert not dlq.replay_all(where="state:discarded")
    assert len(waiting(dlq)) == LETTERS - 2


def test_age_is_counted_from_one_moment_for_the_whole_reading(counted):
    ticks = iter([time.time() + 3_600, time.time() - 3_600])
    dlq = DLQManager(counted, "orders", lambda: next(ticks))
    assert dlq.count("age>59m") == LETTERS
    assert dlq.count("age>59m") == 0


def test_a_replay_that_is_stopped_says_how_much_of_the_chosen_is_done(dlq, counted, monkeypatch):
    dlq.page = 2
    replay, calls = counted.letters.replay, []

    def twice(ids):
        calls.append(ids)
        if len(calls) == 3:
            raise BrokerUnavailable("The disk is full.")
        return replay(ids)

    monkeypatch.setattr(counted.letters, "replay", twice)
    with pytest.raises(BulkStopped, match="Replayed 4 of 8 dead letters of 'orders', then it stopped: The disk is full"):
        dlq.replay_all(where="body.n<8")


def test_a_dlq_that_can_only_be_read_as_a_whole_is_read_once(url):
    """Choosing and acting are in one look, and so is what counts for the progress."""

    class Whole(Counted):
        @contextmanager
        def one_look(self, progress=None):
            self.open = getattr(self, "open", 0) + 1
            self.asked.append("look" if self.open == 1 else "inner look")
            yield
            self.open -= 1

    letters = Whole(dead_letters_for(url, "orders", create=False))
    dlq, told = DLQManager(letters, "orders"), []
    assert dlq.replay_all(lambda *far: told.append(far), where="body.n<5").count == 5
    assert letters.asked.count("look") == 1
    assert letters.asked[0] == "look"
    assert told == [(5, 5)]
    letters.broker.close()
