"""Dead letters move from a DLQ into the store: none is lost, none is kept twice, and what is wrong with one stops no other."""

import logging
import random
import sqlite3

import pytest

from tests.contract.labs import SQLiteLab
from tests.unit.letter_stores import all_of, opened
from tests.unit.stores import Clock
from unpoison.decide.options import Settings
from unpoison.errors import BrokerUnavailable, StoreUnavailable
from unpoison.flow.collecting import Collecting
from unpoison.model.message import Outgoing
from unpoison.port.broker import Dead, Settlement
from unpoison.store.letters import collector as module
from unpoison.store.letters.claims import claimant
from unpoison.store.letters.collector import TURN, Collected, Collector
from unpoison.store.letters.values import DELETED, Change, Turn
from unpoison.store.port import TurnLost
from unpoison.testing import given


@pytest.fixture
def lab(tmp_path):
    with SQLiteLab(tmp_path) as lab:
        yield lab


@pytest.fixture
def clock():
    return Clock(1_000_000.0)


@pytest.fixture
def store(tmp_path, clock):
    store = opened(f"sqlite:///{tmp_path}/store.db", clock)
    yield store
    store.close()


def letters_in(lab, *bodies):
    """A letter for each body, whatever its size."""
    broker = lab.broker("orders")
    given.publish(broker, [Outgoing(f"message-{n}", "orders", body) for n, body in enumerate(bodies)])
    broker.settle(Settlement(dead=[Dead(each, given.letter_of(each)) for each in broker.fetch("orders", len(bodies))]))
    return lab.letters("orders")


def noise(size):
    """What cannot be compressed."""
    return random.Random(size).randbytes(size)


def test_everything_is_moved_in_batches_and_progress_is_told(lab, store, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 3)
    letters, told = letters_in(lab, *(b"%d" % n for n in range(8))), []
    found = Collector(letters, store, "orders").collect(lambda done, total: told.append((done, total)))
    assert found == Collected(new=8)
    assert told == [(3, 8), (6, 8), (8, 8)]
    assert [each.letter.body for each in all_of(store)] == [b"%d" % n for n in range(8)]
    assert letters.count() == 0
    assert Collector(letters, store, "orders").collect() == Collected()


def test_a_letter_that_a_crash_left_in_both_is_folded(lab, store):
    letters = letters_in(lab, b"1", b"2")
    store.put(letters.whole(limit=1))
    assert Collector(letters, store, "orders").collect() == Collected(new=1, known=1)
    assert (len(all_of(store)), letters.count()) == (2, 0)


def test_nothing_is_taken_while_the_store_is_away(lab, store, monkeypatch):
    letters = letters_in(lab, b"1", b"2")

    def fails(*_, **__):
        raise StoreUnavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(type(store), "may_collect", fails)
        broken.setattr(type(letters), "whole", fails)  # RabbitMQ and SQS hand out what is looked at
        with pytest.raises(StoreUnavailable):
            Collector(letters, store, "orders").collect()
    with monkeypatch.context() as broken:
        broken.setattr(type(store), "put", fails)
        with pytest.raises(StoreUnavailable):
            Collector(letters, store, "orders").collect()
    assert letters.count() == 2
    assert Collector(letters, store, "orders").collect() == Collected(new=2)


def test_a_full_disk_leaves_letters_in_the_dlq(lab, store):
    letters = letters_in(lab, *(noise(100_000 + n) for n in range(20)))
    with store._database.reading() as run:
        pages = run("pragma page_count", ()).fetchall()[0][0]
    store._database._connection.execute(f"pragma max_page_count = {pages + 200}")
    with pytest.raises(StoreUnavailable, match="full"):
        Collector(letters, store, "orders").collect()
    kept = {each.letter.id for each in all_of(store)}
    left = {letter.id for letter in letters.browse()}
    assert kept | left == {f"orders-{n}" for n in range(1, 21)}
    store._database._connection.execute("pragma max_page_count = 1000000")
    Collector(letters, store, "orders").collect()
    assert (len(all_of(store)), letters.count()) == (20, 0)


def test_a_letter_that_the_store_cannot_keep_stays_and_stops_no_other(lab, store, caplog):
    letters = letters_in(lab, b"1", noise(50_000), b"3", b"4")
    store._database._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
    collector = Collector(letters, store, "orders")
    assert collector.collect() == Collected(new=3, left=1)
    assert [letter.id for letter in letters.browse()] == ["orders-2"]
    assert collector.collect() == Collected(left=1)
    told = [record for record in caplog.records if record.__dict__.get("event") == "not-collected"]
    assert [record.__dict__["letter_id"] for record in told] == ["orders-2"]
    assert "50,000 bytes" in told[0].getMessage()


def test_one_collector_at_a_time_and_another_takes_over_within_a_second(lab, store, clock, tmp_path):
    letters = letters_in(lab, b"1")
    assert store.may_collect(Turn("orders", "", "killed"), TURN)
    assert store.may_collect(Turn("orders", "", "killed"), TURN)
    assert store.may_collect(Turn("orders", "orders.DLT", "other"), TURN)
    assert Collector(letters, store, "orders").collect() == Collected()
    clock.now += TURN
    assert Collector(letters, store, "orders").collect() == Collected(new=1)
    assert store.may_collect(Turn("orders", "", "killed"), TURN), "its turn ends with its work"


def test_a_collector_that_was_slow_does_not_store_what_may_have_been_deleted_since(lab, store, clock):
    letters = letters_in(lab, b"1", b"2")
    slow, page = Turn("orders", "", "slow"), letters.whole()
    assert store.may_collect(slow, TURN)
    clock.now += 10 * TURN
    assert Collector(letters, store, "orders").collect() == Collected(new=2)
    everything = store.select()
    store.change(everything, Change(DELETED), by="ada")
    with pytest.raises(TurnLost):
        store.put(page, slow)
    assert all_of(store) == []
    assert store.may_collect(slow, TURN)
    clock.now += 10 * TURN
    assert store.put(page, slow).new == 2, "nobody else had a turn"


def test_a_collector_of_this_host_that_has_ended_keeps_nobody_out(lab, store):
    host = claimant().rsplit(":", 2)[0]
    assert store.may_collect(Turn("orders", "", f"{host}:{2**22 - 2}:a"), TURN)
    assert Collector(letters_in(lab, b"1"), store, "orders").collect() == Collected(new=1)


def test_a_turn_that_ends_beyond_all_reason_keeps_nobody_out(store, clock):
    assert store.may_collect(Turn("orders", "", "ahead"), TURN)
    clock.now -= 3_600
    assert store.may_collect(Turn("orders", "", "other"), TURN)


def test_a_claim_keeps_others_from_a_letter_until_it_ends(lab, store, clock):
    Collector(letters_in(lab, b"1", b"2"), store, "orders").collect()
    first, second = (each.number for each in all_of(store))
    assert store.claim([first], by="other-host:1:a", seconds=60) == [first]
    assert store.claim([first, second], by="mine", seconds=60) == [second]
    clock.now += 60
    assert store.claim([first], by="mine", seconds=60) == [first]
    store.release([first, second], by="mine")
    assert store.claim([first, second], by="another", seconds=60) == [first, second]


def test_the_claim_of_a_process_of_this_host_that_has_ended_is_void(lab, store):
    Collector(letters_in(lab, b"1"), store, "orders").collect()
    (letter,) = all_of(store)
    host, pid, _ = claimant().rsplit(":", 2)
    gone = 2**22 - 2  # above what Linux gives by default
    assert store.claim([letter.number], by=f"{host}:{gone}:a", seconds=60) == [letter.number]
    assert store.claim([letter.number], by=f"{host}:{pid}:b", seconds=60) == [letter.number]
    assert store.claim([letter.number], by=f"{host}:{pid}:c", seconds=60) == []


def test_what_cannot_be_collected_beside_a_consumer_is_said_once_and_tried_again(lab, store, tmp_path, monkeypatch, caplog):
    letters_in(lab, b"1")
    caplog.set_level(logging.INFO)
    collecting = Collecting(Settings(lab.url, f"sqlite:///{tmp_path}/store.db", collect=True), "orders")

    def fails(*_, **__):
        raise BrokerUnavailable("Nobody answers.")

    with monkeypatch.context() as broken:
        broken.setattr("unpoison.flow.collecting.dead_letters_for", fails)
        for _ in range(3):
            collecting.step(lambda: True)
    for _ in range(2):
        collecting.step(lambda: True)
    told = [(each.__dict__["event"], each.levelname) for each in caplog.records if "collected" in each.__dict__.get("event", "")]
    assert told == [("not-collected", "WARNING"), ("collected-again", "INFO")]
    assert [each.letter.body for each in all_of(store)] == [b"1"]
    assert store.text_index().behind == 0
    collecting.disconnect()


def test_bodies_of_any_kind_and_size_are_moved_byte_for_byte(lab, store):
    bodies = [b"", b"\0", bytes(range(256)), b"\xff" * 1_000, noise(20 * 2**20), b"[" * 5_000]
    letters = letters_in(lab, *bodies)
    assert Collector(letters, store, "orders").collect() == Collected(new=len(bodies))
    assert [each.letter.body for each in all_of(store)] == bodies
