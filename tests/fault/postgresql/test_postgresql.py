"""What happens to a queue in PostgreSQL: transactions that commit late or never, lost connections, a pooler, a killed server."""

import os
import signal
import threading
import time

import psycopg
import pytest

from unpoison.brokers.postgresql import rows
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.owner import take_over
from unpoison.brokers.postgresql.schema import MIGRATIONS, migrate, statements
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost, PublishFailed, Refusal
from unpoison.model.message import UNTRIED, Counters, Outgoing
from unpoison.port.broker import Depth, Kept, Settlement
from unpoison.port.serialization import read_counters
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until

WRITE = "insert into unpoison_line (source, id, body) values (1, %s, '{}')"


@pytest.fixture
def url(postgresql):
    return postgresql.fresh()


@pytest.fixture
def open_broker(url):
    opened = []

    def open_one(*sources, at=url, **how):
        broker = PostgreSQLBroker(at)
        broker.open(sources or ("orders",), **how)
        opened.append(broker)
        return broker

    yield open_one
    for broker in opened:
        broker.close()


def ids(deliveries):
    return [delivery.id for delivery in deliveries]


def everything(broker, source="orders"):
    found = []
    while deliveries := broker.fetch(source, 100):
        found += deliveries
    return found


def publish(broker, *names, **how):
    given.publish(broker, [Outgoing(name, "orders", b"{}", **how) for name in names])


def test_a_message_that_is_committed_late_is_delivered_though_later_ones_were_handed_out_before(open_broker, url):
    broker = open_broker()
    with psycopg.connect(url) as late, psycopg.connect(url) as later:
        late.execute(WRITE, ("late",))
        publish(broker, "early")
        held = broker.fetch("orders", 10)
        later.execute(WRITE, ("later",))
        assert ids(held) == ["early"]
        late.commit()
        assert ids(everything(broker)) == ["late"]
        later.commit()
        assert ids(everything(broker)) == ["later"]
    assert broker.depth("orders") == Depth(leased=3)


def test_settling_a_stretch_does_not_take_a_late_one_inside_it_along(open_broker, url):
    broker = open_broker()
    publish(broker, "first")
    with psycopg.connect(url) as late:
        late.execute(WRITE, ("late",))
        publish(broker, "last")
        stretch = broker.fetch("orders", 10)
        assert ids(stretch) == ["first", "last"]
        late.commit()
    broker.settle(Settlement(stretch))
    assert ids(everything(broker)) == ["late"]


def waiting(url):
    with psycopg.connect(url) as run:
        found = run.execute("select id, alone, round(extract(epoch from due - now())), counters, owner from unpoison_waiting")
        return {id_: (alone, int(due), counters and read_counters(counters), owner) for id_, alone, due, counters, owner in found}


def test_messages_that_are_kept_together_each_wait_for_their_own_time_with_their_own_counters(open_broker, url):
    broker = open_broker("orders", "mails")
    publish(broker, *"abcd")
    given.publish(broker, [Outgoing("other", "mails", b"{}")])
    (a, b, c, d), (other,) = broker.fetch("orders", 4), broker.fetch("mails", 1)
    kept = [
        Kept(a, Counters(attempts=1)),
        Kept(other, Counters(attempts=3), 7_200),
        Kept(b, Counters(vanished=2, alone=True), 3_600),
        Kept(d, UNTRIED, 60),
    ]
    broker.settle(Settlement(gone=[c], kept=kept))
    (again,) = broker.fetch("orders", 4)
    assert (again.id, again.counters) == ("a", Counters(attempts=1))
    publish(broker, "e")
    (e,) = broker.fetch("orders", 4)
    broker.settle(Settlement(kept=[Kept(e, Counters(attempts=1), 30), Kept(again, Counters(attempts=2), 600)]))
    assert waiting(url) == {
        "a": (False, 600, Counters(attempts=2), None),
        "b": (True, 3_600, Counters(vanished=2, alone=True), None),
        "d": (False, 60, None, None),
        "e": (False, 30, Counters(attempts=1), None),
        "other": (False, 7_200, Counters(attempts=3), None),
    }
    assert (broker.depth("orders"), broker.depth("mails")) == (Depth(delayed=4), Depth(delayed=1))


def test_of_messages_that_are_kept_together_those_that_others_took_are_left_alone(open_broker, url):
    broker = open_broker()
    publish(broker, *"ab")
    broker.settle(Settlement(kept=[Kept(each, Counters(attempts=1)) for each in broker.fetch("orders", 2)]))
    publish(broker, *"cd")
    held = [*broker.fetch("orders", 2), *broker.fetch("orders", 2)]
    with psycopg.connect(url) as others:
        others.execute("delete from unpoison_line where id = 'c'")
        others.execute("update unpoison_waiting set owner = owner + 1 where id = 'a'")
    with pytest.raises(OwnershipLost):
        broker.settle(Settlement(kept=[Kept(each, Counters(attempts=5), 60) for each in held]))
    found = {id_: (due, counters.attempts) for id_, (_, due, counters, _) in waiting(url).items() if id_ != "a"}
    assert found == {"b": (60, 5), "d": (60, 5)}
    assert waiting(url)["a"][2] == Counters(attempts=1)


@pytest.mark.parametrize(("after", "told"), [((60, 90), []), ((60, 0.1), ["1"]), ((0, 60), ["1"])])
def test_others_are_told_of_what_is_kept_only_if_it_is_due_before_they_look_anyway(open_broker, url, after, told):
    broker = open_broker()
    publish(broker, *"ab")
    held = broker.fetch("orders", 2)
    with psycopg.connect(url, autocommit=True) as hears:
        hears.execute("listen unpoison")
        broker.settle(Settlement(kept=[Kept(*each) for each in zip(held, [Counters(attempts=1)] * 2, after, strict=True)]))
        hears.execute("notify unpoison, 'end'")
        heard = [each.payload for each in hears.notifies(timeout=30, stop_after=len(told) + 1)]
    assert heard == [*told, "end"]


@pytest.mark.parametrize("words", ["hello", "", "1 ", "\N{ROMAN NUMERAL ONE}"])
def test_what_another_program_says_on_our_channel_is_not_for_us(open_broker, url, words):
    rang = threading.Event()
    broker = open_broker(ring=rang.set)
    assert broker.fetch("orders", 1) == []
    with psycopg.connect(url, autocommit=True) as others:
        others.execute("select pg_notify('unpoison', %s)", (words,))
        others.execute("select pg_notify('unpoison', '1')")
    assert rang.wait(30)
    assert broker._owner._thread.is_alive()


def test_a_takeover_does_not_take_a_late_one_for_started(open_broker, url):
    gone, broker = open_broker(), open_broker()
    publish(gone, "first")
    with psycopg.connect(url) as late:
        late.execute(WRITE, ("late",))
        publish(gone, "last")
        assert ids(gone.fetch("orders", 10)) == ["first", "last"]
        late.commit()
    with broker.connection.transaction() as run:  # before any fetch has looked for late ones
        assert take_over(run, gone._owner.no)
    assert {each.id: each.returned for each in everything(broker)} == {"first": True, "last": True, "late": False}


def test_many_writers_that_commit_in_any_order_lose_nothing(open_broker, url):
    broker, wanted = open_broker(), 8 * 60

    def write(writer):
        with psycopg.connect(url, autocommit=True) as connection:
            for n in range(60):
                with connection.transaction():
                    connection.execute(WRITE, (f"{writer}-{n}",))
                    connection.execute("select pg_sleep(0.002)")

    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for writer in writers:
        writer.start()
    found = []
    while any(writer.is_alive() for writer in writers) or len(found) < wanted:
        got = broker.fetch("orders", 50)
        found += ids(got)
        broker.settle(Settlement(got))
        assert len(found) <= wanted
    assert len(set(found)) == wanted
    assert broker.depth("orders") == Depth()


def test_consumers_that_fetch_at_once_never_get_the_same_message(open_broker):
    brokers = [open_broker() for _ in range(4)]
    publish(brokers[0], *map(str, range(2_000)))
    found = [[] for _ in brokers]

    def consume(broker, mine):
        while got := broker.fetch("orders", 20):
            mine += ids(got)
            broker.settle(Settlement(got))

    threads = [threading.Thread(target=consume, args=each) for each in zip(brokers, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(id_ for mine in found for id_ in mine) == sorted(map(str, range(2_000)))


def test_what_a_fetch_looks_at_does_not_grow_while_a_transaction_is_open_elsewhere(open_broker, private_server):
    """Counted in pages, not in seconds: dead rows that cannot be removed must not be walked over. On a server of its own, since
    every transaction that is open anywhere on it is looked up once, and what autovacuum reads counts too; here it comes when it
    is called."""
    url = private_server("postgresql", settings={"autovacuum": "off"}).url
    broker = open_broker(at=url)

    def pages(count):
        with psycopg.connect(url, autocommit=True) as watch:
            watch.execute("select pg_stat_reset()")
            for _ in range(count):
                publish(broker, "one")
                broker.settle(Settlement(broker.fetch("orders", 1)))
            with broker.connection.use() as run:
                run.execute("select pg_stat_force_next_flush()")
            query = "select sum(heap_blks_hit + coalesce(idx_blks_hit, 0)) from pg_statio_user_tables"
            return int(watch.execute(query).fetchone()[0])

    with psycopg.connect(url) as long:
        long.execute("select pg_current_xact_id()")
        pages(600)  # until the indexes have as many levels as they will have
        early = pages(50)
        pages(2_000)
        late = pages(50)
        with psycopg.connect(url, autocommit=True) as run:
            run.execute("vacuum analyze")  # can remove nothing, and tells the planner that the line is empty
        analyzed = pages(50)
    # Walking over the dead ones would be twice as many and more; a few more are levels of indexes.
    assert max(late, analyzed) < 1.8 * early, f"{early} pages at first, {late} after 2,000 messages, {analyzed} with statistics"


def test_a_lost_connection_is_made_again_and_what_is_held_stays_held(open_broker, url):
    broker = open_broker()
    publish(broker, "one", "two")
    held = broker.fetch("orders", 1)
    cut(url)
    while True:  # the connection of its owner is made again by its own thread
        try:
            got = broker.fetch("orders", 1)
        except BrokerUnavailable:
            continue
        break
    assert ids(got) == ["two"]
    broker.settle(Settlement([*held, *got]))
    assert broker.depth("orders") == Depth()


def cut(url):
    """As an administrator, or a firewall, does."""
    with psycopg.connect(url, autocommit=True) as connection:
        others = "pid <> pg_backend_pid() and datname = current_database()"
        connection.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}")


def test_a_consumer_that_was_cut_off_takes_its_lock_again(open_broker, url):
    broker = open_broker()
    publish(broker, "one")
    broker.fetch("orders", 1)
    held = "select count(*) from pg_locks where locktype = 'advisory' and granted and database = (select oid from pg_database {})"
    query = held.format("where datname = current_database()") + " and mode = 'ExclusiveLock'"

    def locks():
        with psycopg.connect(url) as connection:
            return connection.execute(query).fetchone()[0]

    assert locks() == 1
    cut(url)
    ends = time.monotonic() + 60
    while locks() != 1:
        assert time.monotonic() < ends, "it never took its lock again"


def test_a_consumer_whose_connection_was_cut_and_whose_messages_were_taken_over_is_told_so(open_broker, url):
    broker, other = open_broker(), open_broker()
    publish(broker, "one")
    held = broker.fetch("orders", 1)
    broker._owner._closed.set()  # its thread does not come back, as on a host that stands still
    cut(url)
    while not (taken := fetched(other)):
        pass
    assert taken[0].returned
    with pytest.raises(OwnershipLost):
        settle(broker, held)
    other.settle(Settlement(taken))
    assert other.depth("orders") == Depth()


def fetched(broker):
    try:
        return broker.fetch("orders", 10)
    except BrokerUnavailable:
        return ()


def settle(broker, deliveries):
    while True:
        try:
            return broker.settle(Settlement(deliveries))
        except BrokerUnavailable:
            continue


def test_behind_a_pooler_messages_are_published_fetched_settled_and_taken_over(pgbouncer, open_broker, monkeypatch):
    url = pgbouncer.fresh()
    first, second = open_broker(at=url), open_broker(at=url)
    publish(first, "one", "two", "three")
    held = first.fetch("orders", 2)
    first.settle(Settlement([held[0]], [Kept(held[1], held[1].counters)]))
    assert sorted(ids(everything(first))) == ["three", "two"]
    first._owner.close()  # it vanishes; there is no lock here that would tell
    assert second.fetch("orders", 10) == []
    with second.connection.use() as run:
        run.execute("update unpoison_owners set until = statement_timestamp()")
    monkeypatch.setattr("unpoison.brokers.postgresql.broker.TAKEOVER_EVERY", 0.0)
    assert sorted(ids(everything(second))) == ["three", "two"]


def test_behind_a_pooler_an_idle_consumer_is_rung(pgbouncer, open_broker):
    rung = threading.Event()
    broker = open_broker(at=pgbouncer.fresh(), ring=rung.set)
    assert broker.fetch("orders", 10) == []
    publish(broker, "one")
    assert ids(given.fetched_when_rung(broker, "orders", rung)) == ["one"]


def test_what_was_confirmed_is_there_after_the_server_was_killed(private_server):
    server = private_server("postgresql")
    broker = PostgreSQLBroker(server.url)
    broker.open(["orders"])
    publish(broker, *map(str, range(100)))
    held = broker.fetch("orders", 10)
    broker.settle(Settlement((), [Kept(held[0], held[0].counters, after=3600.0)]))
    server.kill_hard()
    with pytest.raises(BrokerUnavailable, match="Check that the server runs"):
        publish(broker, "lost")
    server.start()
    depth = broker.depth("orders")
    assert (depth.ready + depth.leased, depth.delayed) == (99, 1)
    publish(broker, "after")
    assert broker.depth("orders").ready == depth.ready + 1
    broker.close()


def test_a_consumer_that_the_server_does_not_hear_of_any_more_is_taken_for_gone(open_broker, monkeypatch):
    """A host or a network that vanishes without a word: its lock is still held, by a session that nobody uses."""
    monkeypatch.setattr("unpoison.brokers.postgresql.broker.TAKEOVER_EVERY", 0.0)
    silent, other = open_broker(), open_broker()
    publish(silent, "one")
    silent.fetch("orders", 1)
    assert other.fetch("orders", 10) == [], "it is alive"
    with other.connection.use() as run:
        run.execute("update unpoison_owners set until = statement_timestamp()")
    assert ids(everything(other)) == ["one"]


def test_what_a_closed_consumer_leaves_is_free_before_the_server_has_ended_its_session(open_broker):
    first = open_broker()
    publish(first, "one")
    first.fetch("orders", 1)
    session = first._owner._connection.info.backend_pid
    os.kill(session, signal.SIGSTOP)
    try:
        os.write(first._owner._wake_writer, b"x")
        wait_until(lambda: is_asking(first._owner), lambda: "its thread does not ask the server")
        first.close()
        assert ids(open_broker().fetch("orders", 10)) == ["one"]
    finally:
        os.kill(session, signal.SIGCONT)


def is_asking(owner):
    if not owner._guard.acquire(blocking=False):
        return True
    owner._guard.release()
    return False


def test_a_consumer_says_again_and_again_that_it_is_alive(open_broker, monkeypatch):
    monkeypatch.setattr("unpoison.brokers.postgresql.owner.LEASE", 0.3)
    broker = open_broker()
    publish(broker, "one")
    broker.fetch("orders", 1)

    def until():
        with broker.connection.use() as run:
            return run.execute("select until from unpoison_owners").fetchone()[0]

    before = until()
    ends = time.monotonic() + 30
    while until() == before:
        assert time.monotonic() < ends, "it says nothing"


def test_a_fetch_ends_early_when_it_has_read_enough_bytes(open_broker, monkeypatch):
    monkeypatch.setattr("unpoison.brokers.postgresql.broker.FETCH_BYTES", 1_000)
    broker = open_broker()
    broker.publish([Outgoing(str(n), "orders", bytes(600), delay=0.0) for n in range(4)])
    held = broker.fetch("orders", 10)
    assert ids(held) == ["0", "1"]
    broker.settle(Settlement((), [Kept(delivery, delivery.counters) for delivery in held]))
    assert len(broker.fetch("orders", 10)) == 2
    assert len(broker.fetch("orders", 10)) == 2


def test_a_nul_in_an_id_is_refused_before_anything_is_written(open_broker):
    broker = open_broker()
    with pytest.raises(PublishFailed, match="NUL") as caught:
        publish(broker, "fine", "not\x00fine")
    assert [each.refusal for each in caught.value.refused] == [Refusal.NOT_SENT, Refusal.UNFIT]
    assert broker.depth("orders") == Depth()


def test_tables_can_be_made_by_own_migrations_and_then_nothing_is_created(open_broker, url):
    with pytest.raises(ConfigError, match="unpoison migrate"):
        open_broker(create=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements())
    with pytest.raises(ConfigError, match="'orders' does not exist"):
        open_broker(create=False)
    open_broker("orders")
    publish(open_broker(create=False), "one")


def test_tables_of_a_newer_version_are_refused(open_broker, url):
    open_broker()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("update unpoison_version set version = 99")
    with pytest.raises(ConfigError, match="written by a newer unpoison"):
        open_broker()


def test_tables_that_a_newer_version_migrates_at_the_same_time_are_left_alone(url):
    refused = []

    def migrate_too():
        with psycopg.connect(url, autocommit=True) as connection, pytest.raises(ConfigError, match="written by a newer unpoison"):
            migrate(connection, "here", create=True)
        refused.append(True)

    waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    with psycopg.connect(url) as newer, psycopg.connect(url, autocommit=True) as watch:
        newer.execute("select pg_advisory_xact_lock(hashtext('unpoison_version'))")
        older = threading.Thread(target=migrate_too)
        older.start()
        while older.is_alive() and watch.execute(waits).fetchone() == (0,):
            pass
        newer.execute("create table unpoison_version (version integer not null)")
        newer.execute("insert into unpoison_version values (99)")
        newer.commit()
        older.join()
        assert refused
        assert watch.execute("select version from unpoison_version").fetchall() == [(99,)]


def test_a_migration_that_fails_changes_nothing(url):
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error):
            migrate(connection, "here", create=True, migrations=(*MIGRATIONS, "create table half (a int);\nno statement"))
        found = connection.execute("select count(*) from pg_class where relname like 'unpoison%' or relname = 'half'").fetchone()
        assert found == (0,)


@pytest.mark.parametrize("wrong", ["postgresql://[half/x", "postgresql://?no_such_option=1"])
def test_a_url_that_libpq_does_not_understand_is_refused_at_once(wrong):
    with pytest.raises(ConfigError, match=r"is not a PostgreSQL URL|does not say which server is meant"):
        PostgreSQLBroker(wrong)


def test_a_password_is_never_shown():
    broker = PostgreSQLBroker("postgresql://shop:secret@127.0.0.1:1/shop")
    with pytest.raises(BrokerUnavailable) as raised:
        broker.open(["orders"])
    assert "secret" not in str(raised.value)
    assert "shop:***@" in str(raised.value)


def test_a_fetch_that_fails_half_way_does_not_spoil_the_next_one(open_broker, url):
    broker = open_broker(at=f"{url}?options=-c%20lock_timeout%3D100ms")
    publish(broker, "one")
    with psycopg.connect(url) as other:
        other.execute(rows.LOCK_LINE, {"source": 1})
        with pytest.raises(BrokerUnavailable, match="lock timeout"):
            broker.fetch("orders", 10)
    assert ids(broker.fetch("orders", 10)) == ["one"]


@pytest.mark.parametrize("setting", ["synchronous_commit%3Doff", "default_transaction_isolation%3Drepeatable%5C%20read"])
def test_defaults_of_a_role_do_not_weaken_what_is_promised(open_broker, url, setting):
    broker = open_broker(at=f"{url}?options=-c%20{setting}")
    with broker.connection.transaction() as run:
        assert run.execute("select current_setting('synchronous_commit')").fetchone() == ("on",)
        assert run.execute("select current_setting('transaction_isolation')").fetchone() == ("read committed",)


def test_what_an_administrator_made_stronger_stays_so(open_broker, url):
    broker = open_broker(at=f"{url}?options=-c%20synchronous_commit%3Dremote_apply")
    publish(broker, "one")
    with broker.connection.transaction() as run:
        broker.connection.make_durable(run)
        assert run.execute("select current_setting('synchronous_commit')").fetchone() == ("remote_apply",)
