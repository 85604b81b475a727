"""What consumers and operators share: every promise of the port, on SQLite and on PostgreSQL."""

import sqlite3
import threading
from contextlib import closing
from functools import partial

import pytest

from tests.unit.stores import Clock, new_store, opened, outage, paused, sign
from unpoison.errors import ConfigError, StoreUnavailable
from unpoison.store import sqlite
from unpoison.store.choice import store_for, store_url
from unpoison.store.port import ADMISSION, FORGOTTEN, OPEN, OPERATOR, PAUSING
from unpoison.store.sql_store import ALIVE, HEARD_EVERY, KEPT, SIGN_EVERY, SQLStore
from unpoison.testing.processes import Child, Gate


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
def store(url, clock):
    store = opened(url, clock)
    yield store
    store.close()


def test_consumers_hear_how_many_of_their_source_are_alive_and_with_which_versions(store, clock):
    assert store.exchange(sign("a:1", "1.0"), []).consumers == 1
    store.exchange(sign("c:3", "7", source="parcels"), [])
    shared = store.exchange(sign("b:2", "1.1"), [])
    assert (shared.consumers, set(shared.living_versions), shared.now) == (2, {"1.0", "1.1"}, clock.now)
    assert [each.consumer for each in store.consumers("orders")] == ["a:1", "b:2"]
    assert len(store.consumers()) == 3


def test_a_sign_of_life_is_written_now_and_then_and_at_once_when_it_says_something_else(store, clock):
    store.exchange(sign(), [])
    began, clock.now = clock.now, clock.now + SIGN_EVERY / 2
    store.exchange(sign(), [])
    assert [each.seen_at for each in store.consumers()] == [began]
    store.exchange(sign(state="paused"), [])
    assert [(each.seen_at, each.state) for each in store.consumers()] == [(clock.now, "paused")]
    clock.now += SIGN_EVERY
    store.exchange(sign(state="paused"), [])
    assert [(each.started_at, each.seen_at) for each in store.consumers()] == [(began, clock.now)]


def test_a_consumer_that_says_nothing_any_more_is_not_alive_and_is_forgotten_later(store, clock):
    store.exchange(sign("gone:1", "1.0"), [])
    clock.now += ALIVE + 1
    shared = store.exchange(sign("here:2", "1.1"), [])
    assert (shared.consumers, set(shared.living_versions)) == (1, {"1.1"})
    with store._database.reading() as run:
        assert len(run("select * from unpoison_consumers", ()).fetchall()) == 2
    clock.now += KEPT
    store.exchange(sign("here:2", "1.1"), [])
    with store._database.reading() as run:
        assert len(run("select * from unpoison_consumers", ()).fetchall()) == 1


def test_a_clock_that_is_set_back_makes_nobody_immortal(store, clock):
    store.exchange(sign(), [])
    clock.now -= 86_400
    store.exchange(sign(), [])
    assert [each.seen_at for each in store.consumers()] == [clock.now]


def test_a_consumer_that_ends_takes_its_leave(store):
    store.exchange(sign("a:1"), [])
    store.exchange(sign("a:1", source="parcels"), [])
    store.leave("a:1", "orders")
    assert [each.source for each in store.consumers()] == ["parcels"]


def test_a_pause_is_heard_by_the_consumers_of_that_source(store, clock):
    store.pause(paused(reason="stock-taking", by="ada@desk", evidence={"ticket": 7}))
    (heard,) = store.exchange(sign(), []).pauses
    assert heard == paused(reason="stock-taking", by="ada@desk", since=clock.now, evidence={"ticket": 7})
    assert list(store.exchange(sign(source="parcels"), []).pauses) == []


def test_there_is_one_pause_of_each_kind_and_the_first_one_stays(store, clock):
    store.pause(paused(by="ada@desk"))
    since, clock.now = clock.now, clock.now + 10
    store.pause(paused(by="bob@desk"))
    store.pause(paused(ADMISSION, by="a:1"))
    assert [(each.kind, each.by, each.since) for each in store.pauses("orders")] == [
        (ADMISSION, "a:1", clock.now),
        (OPERATOR, "ada@desk", since),
    ]


def test_resuming_ends_the_kinds_that_were_meant_and_says_which_there_were(store):
    store.pause(paused(OPERATOR))
    store.pause(paused(ADMISSION))
    store.pause(paused(OPERATOR, source="parcels"))
    assert [each.kind for each in store.resume("orders", "ada@desk", [ADMISSION])] == [ADMISSION]
    assert [each.kind for each in store.resume("orders", "ada@desk")] == [OPERATOR]
    assert list(store.resume("orders", "ada@desk")) == []
    assert [each.source for each in store.pauses()] == ["parcels"]


def test_versions_are_newer_than_a_pause_if_they_were_first_seen_later_than_its_version(store, clock):
    for version in ("3", "1", "2"):  # the order counts, not the number
        clock.now += 1
        store.exchange(sign(version=version), [])
    store.pause(paused(ADMISSION, code_version="1"))
    assert store.exchange(sign(version="1"), []).newer_versions == {"2"}
    clock.now += 1
    assert store.exchange(sign(version="3"), []).newer_versions == {"2"}, "seen again is not seen first"


def test_after_a_pause_without_a_version_any_version_that_is_new_by_then_is_newer(store, clock):
    store.exchange(sign(version="1"), [])
    clock.now += 1
    store.pause(paused(ADMISSION, code_version=None))
    assert store.exchange(sign(version=None), []).newer_versions == set()
    clock.now += 1
    assert store.exchange(sign(version="2"), []).newer_versions == {"2"}


def test_a_persons_pause_is_ended_by_no_version(store, clock):
    store.exchange(sign(version="1"), [])
    store.pause(paused(OPERATOR, code_version="1"))
    clock.now += 1
    assert store.exchange(sign(version="2"), []).newer_versions == set()


def test_a_newer_versions_pause_takes_the_place_of_an_older_ones_and_not_the_other_way_round(store, clock):
    for version in ("1", "2"):
        clock.now += 1
        store.exchange(sign(version=version), [])
    store.pause(paused(ADMISSION, code_version="1"))
    store.pause(paused(ADMISSION, code_version="2"))
    assert [each.code_version for each in store.pauses()] == ["2"]
    store.pause(paused(ADMISSION, code_version="1"))
    assert [each.code_version for each in store.pauses()] == ["2"]


def test_the_outage_that_one_consumer_tells_is_heard_by_the_others(store, clock):
    ours = outage(clock)
    store.exchange(sign("a:1"), [ours])
    (heard,) = store.exchange(sign("b:2"), []).circuits
    assert (heard.revision, heard.dependency, heard.since, heard.samples) == (1, ours.dependency, ours.since, ours.samples)
    assert (heard.is_named, heard.next_probe_at, heard.by) == (True, ours.next_probe_at, "a:1")
    assert list(store.exchange(sign(source="parcels"), []).circuits) == []


def test_of_two_consumers_that_find_the_same_outage_the_first_is_right(store, clock):
    store.exchange(sign("a:1"), [outage(clock, messages=10, by="a:1")])
    (heard,) = store.exchange(sign("b:2"), [outage(clock, messages=99, by="b:2")]).circuits
    assert (heard.messages, heard.by, heard.revision) == (10, "a:1", 1)


def test_who_has_not_heard_that_an_outage_is_over_does_not_bring_it_back(store, clock):
    (heard,) = store.exchange(sign("a:1"), [outage(clock)]).circuits
    store.close_circuit("orders", heard.dependency, heard.since)
    assert list(store.exchange(sign("a:1"), [heard]).circuits) == []
    assert len(store.exchange(sign("a:1"), [outage(clock)]).circuits) == 1, "a new one it may tell"


def test_who_has_not_heard_of_a_change_does_not_undo_it(store, clock):
    (first,) = store.exchange(sign("a:1"), [outage(clock)]).circuits
    (second,) = store.exchange(sign("b:2"), [outage(clock, revision=1, state=PAUSING)]).circuits
    assert (first.state, second.state, second.revision) == (OPEN, PAUSING, 2)
    (third,) = store.exchange(sign("a:1"), [first]).circuits
    assert third.state == PAUSING
    (fourth,) = store.exchange(sign("a:1"), [outage(clock, revision=2, state=OPEN)]).circuits
    assert (fourth.state, fourth.revision) == (OPEN, 3)


def test_the_end_of_one_outage_is_not_the_end_of_the_next(store, clock):
    store.exchange(sign("a:1"), [outage(clock, since=500.25)])
    store.close_circuit("orders", "billing:443", since=499.0)
    assert len(store.circuits("orders")) == 1
    store.close_circuit("orders", "billing:443", since=500.25)
    assert list(store.circuits()) == []
    store.exchange(sign("a:1"), [outage(clock)])
    store.close_circuit("orders", "billing:443")
    assert list(store.circuits()) == []


def test_a_probe_may_be_made_when_it_is_due_and_by_one_consumer(store, clock):
    store.exchange(sign("a:1"), [outage(clock, next_probe_at=clock.now + 1)])
    assert not store.claim_probe("orders", "billing:443", 2.0, "b:2")
    clock.now += 1
    assert store.claim_probe("orders", "billing:443", 2.0, "b:2")
    assert not store.claim_probe("orders", "billing:443", 2.0, "a:1")
    (circuit,) = store.circuits()
    assert (circuit.next_probe_at, circuit.interval, circuit.by) == (clock.now + 2, 2.0, "b:2")
    assert circuit.revision == 1, "the others know all the same what the outage is"
    assert not store.claim_probe("orders", "search:9200", 2.0, "a:1")


def test_a_clock_that_is_set_back_keeps_no_probe_waiting(store, clock):
    store.exchange(sign("a:1"), [outage(clock, next_probe_at=clock.now)])
    assert store.claim_probe("orders", "billing:443", 15.0, "a:1")
    clock.now -= 10
    assert not store.claim_probe("orders", "billing:443", 15.0, "a:1"), "it may come from a clock that differs a little"
    clock.now -= 3600
    (known,) = store.circuits()
    assert known.due_in(clock.now) < 0
    assert store.claim_probe("orders", "billing:443", 15.0, "a:1")
    (known,) = store.circuits()
    assert known.due_in(clock.now) == 15


def test_of_many_that_race_for_a_probe_one_gets_it(store, url, clock):
    store.exchange(sign(), [outage(clock, next_probe_at=clock.now)])
    stores = [opened(url, clock) for _ in range(6)]
    for _ in range(5):
        start, won = threading.Barrier(len(stores)), []

        def race(each, start=start, won=won):
            start.wait()
            won.append(each.claim_probe("orders", "billing:443", 1.0, "a:1"))

        threads = [threading.Thread(target=race, args=(each,)) for each in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False] * (len(stores) - 1) + [True]
        clock.now += 1
    for each in stores:
        each.close()


def test_of_several_processes_that_race_for_a_probe_one_gets_it(store, url, clock, tmp_path):
    store.exchange(sign(), [outage(clock, next_probe_at=clock.now)])
    start = Gate("start")

    def race(number: int) -> None:
        mine = opened(url, clock)
        start.wait()
        if mine.claim_probe("orders", "billing:443", 1.0, f"a:{number}"):
            (tmp_path / f"won-{number}").touch()

    children = [Child(partial(race, number)) for number in range(4)]
    start.open()
    assert [child.wait() for child in children] == [0] * 4
    assert len(list(tmp_path.glob("won-*"))) == 1


def test_an_outage_of_which_nothing_is_heard_any_more_is_forgotten(store, clock):
    store.exchange(sign(), [outage(clock)])
    clock.now += FORGOTTEN - 1
    store.exchange(sign(), [outage(clock, revision=1, heard_at=clock.now)])
    clock.now += FORGOTTEN - 1
    assert len(store.exchange(sign(), []).circuits) == 1
    clock.now += 2
    assert len(store.exchange(sign(), []).circuits) == 0


def test_that_something_was_heard_of_an_outage_is_noted_once_a_minute(store, clock):
    (circuit,) = store.exchange(sign(), [outage(clock)]).circuits
    began = circuit.heard_at
    for seconds in (1, HEARD_EVERY - 1, HEARD_EVERY):
        clock.now = began + seconds
        (circuit,) = store.exchange(sign(), [outage(clock, revision=1, heard_at=clock.now)]).circuits
        assert circuit.heard_at == (began if seconds < HEARD_EVERY else clock.now)


def test_all_of_it_survives_a_restart(store, url, clock):
    store.exchange(sign(version="1"), [outage(clock, next_probe_at=clock.now)])
    store.pause(paused(ADMISSION, code_version="1"))
    store.claim_probe("orders", "billing:443", 2.0, "a:1")
    before = store.exchange(sign(version="1"), [])
    store.close()
    clock.now += 1
    again = opened(url, clock)
    assert again.exchange(sign(version="2"), []).newer_versions == {"2"}
    assert (again.pauses(), again.circuits()) == (before.pauses, before.circuits)
    again.close()


def test_text_of_any_kind_can_be_stored(store, clock):
    odd = "a\0b \ud800 ü 'quoted' ?%s"
    store.exchange(sign(odd, version=odd, state=odd), [outage(clock, dependency=odd, samples=(odd,))])
    store.pause(paused(reason=odd, by=odd, evidence={"samples": [odd]}))
    assert [each.dependency for each in store.circuits()] == ["a\ufffdb ? ü 'quoted' ?%s"]
    assert len(store.pauses()) == len(store.consumers()) == 1


@pytest.mark.parametrize("text", ["", "[1", "7", '{"a": 1}', "[1, 2]", '"\\ud800"'])
def test_whatever_someone_has_written_into_the_tables_is_read(store, clock, text):
    store.exchange(sign(), [outage(clock)])
    store.pause(paused())
    with store._database.writing() as run:
        run("update unpoison_circuits set samples = ?", (text,))
        run("update unpoison_pauses set evidence = ?", (text,))
    assert [each.samples for each in store.circuits()] == [()]
    assert [isinstance(each.evidence, dict) for each in store.pauses()] == [True]


def test_a_store_that_is_not_open_is_away(store):
    store.close()
    with pytest.raises(StoreUnavailable):
        store.pauses()
    store.open()
    assert list(store.pauses()) == []


# SQLite alone


def test_an_exchange_without_news_waits_for_no_lock_of_the_file(tmp_path, clock):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", clock)
    store.exchange(sign(), [outage(clock)])
    with closing(sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        assert store.exchange(sign(), [outage(clock, revision=1)]).consumers == 1
        other.execute("rollback")
    store.close()


def test_a_file_that_another_program_locks_is_a_store_that_is_away(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.01)
    store = opened(f"sqlite:///{tmp_path}/fleet.db", clock)
    with store._database.reading() as run:
        assert run("pragma busy_timeout", ()).fetchall() == [(10,)]
    with closing(sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match=r"database is locked.*held a write transaction for more than 0.01 s"):
            store.pause(paused())
        other.execute("rollback")
    store.pause(paused())
    store.close()


def test_in_the_brokers_file_a_transaction_of_the_store_is_short_since_it_finds_its_rows_by_key(tmp_path, clock):
    database = sqlite.SQLiteDatabase(f"sqlite:///{tmp_path}/shop.db", clock=clock)
    store = SQLStore(database)
    store.open()
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        statements = []
        database._connected().set_trace_callback(statements.append)
        for number in range(50):
            store.exchange(sign(f"a:{number}", "1.0"), [outage(clock, dependency=f"host-{number}:443")])
        database._connected().set_trace_callback(None)
        reads = {each for each in statements if each.lower().startswith(("select", "delete", "update"))}
        plans = [row[3] for each in reads for row in connection.execute(f"explain query plan {each}")]
    assert plans
    assert [plan for plan in plans if plan.startswith("SCAN")] == []
    store.close()


# Which store


def test_where_the_broker_can_be_the_store_it_is_unless_told_otherwise(tmp_path):
    assert store_url("sqlite:////srv/shop.db", None) == "sqlite:////srv/shop.db"
    assert store_url("postgres://db/shop", None) == "postgres://db/shop"
    assert store_url("amqp://mq/shop", None) == store_url("memory://", None) == ""
    assert store_url("sqlite:////srv/shop.db", "") == ""
    assert store_url("amqp://mq/shop", "postgresql://db/shop") == "postgresql://db/shop"


def test_a_file_is_the_same_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store_url("amqp://mq/shop", "sqlite:///fleet.db") == f"sqlite:///{tmp_path}/fleet.db"


@pytest.mark.parametrize("url", ["redis://ada:s3cret@h/0", "memory://", "fleet.db", "amqp://ada:s3cret@h"])
def test_what_cannot_be_a_store_is_refused_without_its_password(url):
    with pytest.raises(ConfigError, match=r"cannot be a store.*sqlite:///shop.db.*store=''") as refused:
        store_for(url)
    assert "s3cret" not in str(refused.value)
