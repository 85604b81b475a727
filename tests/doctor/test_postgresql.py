"""Each trap of a PostgreSQL server is made for real, found by its name, mended by the very statements of its fix, and gone."""

import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.servers_plugin import private_or_skip
from unpoison.brokers import findings_for
from unpoison.brokers.postgresql import schema, server_checks
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Outgoing
from unpoison.port import findings
from unpoison.port.findings import MANY_DEAD

PATIENCE = 30.0
SEES_SESSIONS = "pg_read_all_stats"


@pytest.fixture(scope="module")
def server():
    with private_or_skip("postgresql", settings={"max_connections": "24", "max_prepared_transactions": "5"}) as server:
        yield server


@pytest.fixture
def url(server):
    """A database with the tables and the source 'orders', in order."""
    url = server.fresh()
    open_broker(url).close()
    return url


def open_broker(url, *sources):
    broker = PostgreSQLBroker(url)
    broker.open(sources or ("orders",))
    return broker


def run(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def found(url, *sources):
    return {finding.name: finding for finding in findings_for(url, sources)}


def mend(url, finding):
    """As a person would: everything after the sentence is copied into psql."""
    run(url, *finding.fix.splitlines()[1:])


def until(names, url):
    """Settings of the server take a moment to reach it."""
    ends = time.monotonic() + PATIENCE
    while sorted(seen := found(url)) != sorted(names):
        assert time.monotonic() < ends, f"{sorted(seen)}, not {names}"
    return seen


def as_role(url, name, *grants):
    """The URL for a new role without any rights but these."""
    run(url, f"drop role if exists {name}", f"create role {name} login", *(f"grant {grant} to {name}" for grant in grants))
    return urlsplit(url)._replace(netloc=f"{name}@{urlsplit(url).hostname}:{urlsplit(url).port}").geturl()


def drop_role(url, name):
    run(url, f"drop owned by {name}", f"drop role {name}")


def test_a_database_in_order_has_no_findings(url):
    assert found(url, "orders") == {}


def test_nothing_can_be_written_while_it_looks(url, monkeypatch):
    def write(connection):
        connection.execute("delete from unpoison_line")
        yield

    monkeypatch.setattr(server_checks, "ACTIVITY_CHECKS", {"something": write})
    with pytest.raises(BrokerUnavailable, match="cannot execute DELETE in a read-only transaction"):
        found(url)


def test_a_server_that_does_not_answer_is_said_to_be_unavailable():
    with pytest.raises(BrokerUnavailable, match="Check that the server runs"):
        found("postgresql://shop:secret@127.0.0.1:1/shop")


def test_a_replica_whose_role_is_read_only_too_is_found_once():
    on = server_checks.Setting("on", "")
    names = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "default_transaction_read_only")
    facts = dict.fromkeys(names, on) | {"is_replica": True, "shown": "postgresql://h/shop", "primary": ""}
    assert [each.name for each in findings.examine(server_checks.SETTINGS, facts)] == ["read-only-replica"]


@pytest.mark.parametrize(
    ("setting", "name", "loses"),
    [
        ("fsync", "fsync-off", True),
        ("full_page_writes", "full-page-writes-off", True),
        ("synchronous_commit", "synchronous-commit-off", True),
        ("autovacuum", "autovacuum-off", False),
    ],
)
def test_settings_of_the_server(url, setting, name, loses):
    run(url, f"alter system set {setting} = off", "select pg_reload_conf()")
    finding = until([name], url)[name]
    assert finding.loses is loses
    mend(url, finding)
    until([], url)


@pytest.mark.parametrize("of", ["role postgres", "database {database}", "role postgres in database {database}"])
def test_synchronous_commit_off_as_a_default_is_undone_where_it_was_set(url, of):
    run(url, f"alter {of.format(database=urlsplit(url).path[1:])} set synchronous_commit = off")
    finding = found(url)["synchronous-commit-off"]
    mend(url, finding)
    assert found(url) == {}


def test_synchronous_commit_off_in_the_url(url):
    assert "remove synchronous_commit from the options in the URL" in (
        found(f"{url}?options=-c%20synchronous_commit%3Doff")["synchronous-commit-off"].fix
    )


def test_read_only_default(url):
    run(url, f"alter database {urlsplit(url).path[1:]} set default_transaction_read_only = on")
    finding = found(url)["read-only-default"]
    statement = finding.fix.splitlines()[1]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set default_transaction_read_only = off")
        connection.execute(statement)
    assert found(url) == {}


def test_unlogged_tables(url):
    run(url, "alter table unpoison_line set unlogged")
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.info.server_version >= 150_000:  # older ones have no unlogged sequences
            connection.execute("alter sequence unpoison_positions set unlogged")
    finding = found(url)["unlogged-tables"]
    assert finding.loses
    assert finding.problem.startswith("Unlogged: unpoison_line")
    mend(url, finding)
    assert found(url) == {}


def test_autovacuum_off_for_table(url):
    run(
        url,
        "alter table unpoison_line set (autovacuum_enabled = false)",
        "alter table unpoison_dead set (autovacuum_enabled = on)",
    )
    finding = found(url)["autovacuum-off-for-table"]
    assert "for unpoison_line." in finding.problem
    mend(url, finding)
    assert found(url) == {}


def test_tables_missing(server):
    url = server.fresh()
    assert found(url)["tables-missing"].fix.endswith(f"unpoison migrate {url}")
    open_broker(url).close()
    assert found(url) == {}


def test_tables_older(url, monkeypatch):
    more = (*schema.MIGRATIONS, "create table unpoison_more (no integer)")
    monkeypatch.setattr(schema, "MIGRATIONS", more)
    assert "tables of version 1, this unpoison needs 2" in found(url)["tables-older"].problem
    with psycopg.connect(url, autocommit=True) as connection:
        schema.migrate(connection, url, create=True, migrations=more)
    assert found(url) == {}


def test_tables_newer(url):
    run(url, "update unpoison_version set version = 99")
    assert "version 99" in found(url)["tables-newer"].problem
    run(url, "update unpoison_version set version = 1")
    assert found(url) == {}


def test_source_missing(url):
    assert "there are: 'orders'" in found(url, "ordres")["source-missing"].problem
    open_broker(url, "ordres").close()
    assert found(url, "ordres") == {}


def test_missing_rights_are_granted_one_by_one_until_nothing_is_missing(url):
    weak = as_role(url, "weak", SEES_SESSIONS, "select on unpoison_version")
    try:
        seen = findings_for(weak)
        assert {finding.name for finding in seen} == {"missing-rights", "cannot-look"}
        assert len([finding for finding in seen if finding.name == "cannot-look"]) == 3
        mend(url, found(weak)["missing-rights"])
        assert found(weak, "orders") == {}
        broker = open_broker(weak)
        broker.publish([Outgoing("1", "orders", b"{}")])
        broker.close()
        run(url, "revoke usage on sequence unpoison_positions from weak", "revoke delete on unpoison_line from weak")
        assert "delete on unpoison_line; usage on sequence unpoison_positions" in found(weak)["missing-rights"].problem
    finally:
        drop_role(url, "weak")


def test_a_role_that_may_not_even_ask_for_the_version_is_told_so(url):
    blind = as_role(url, "blind", SEES_SESSIONS)
    try:
        assert "permission denied for table unpoison_version" in found(blind)["cannot-look"].problem
        run(url, "grant select, insert, update, delete on all tables in schema public to blind")
        run(url, "grant usage on sequence unpoison_positions to blind")
        assert found(blind) == {}
    finally:
        drop_role(url, "blind")


def test_missing_rights_where_the_tables_are_still_to_be_made(server):
    url = server.fresh()
    run(url, "revoke create on schema public from public")
    poor = as_role(url, "poor", SEES_SESSIONS)
    try:
        finding = found(poor)["missing-rights"]
        mend(url, finding)
        assert set(found(poor)) == {"tables-missing"}
    finally:
        drop_role(url, "poor")


def test_behind_pooler(url):
    with private_or_skip("pgbouncer", upstream=url) as pooler:
        pooled = urlsplit(pooler.url)._replace(path=urlsplit(url).path).geturl()
        finding = found(pooled)["behind-pooler"]
        assert finding.fix.count("set enable_") == 5
        try:
            mend(url, finding)
            with psycopg.connect(url) as new:
                assert new.execute("show enable_seqscan").fetchone() == ("off",)
        finally:
            run(url, "alter role postgres reset all")
    assert found(url) == {}, "a URL that leads to the server itself"


def test_vanished_consumer(url):
    broker = open_broker(url)
    broker.publish([Outgoing(str(n), "orders", b"{}") for n in range(3)])
    assert len(broker.fetch("orders", 10)) == 3
    assert found(url) == {}, "it is alive"
    broker._owner.close()  # as if its processes had ended
    until(["vanished-consumer"], url)
    assert "held 3 messages" in found(url)["vanished-consumer"].problem
    other = open_broker(url)
    assert len(other.fetch("orders", 10)) == 3
    assert found(url) == {}
    other.close()
    broker.close()


def test_many_dead_letters(url):
    letter = "insert into unpoison_dead (source, state, replays, fingerprint, id, body, record) "
    run(url, f"{letter} select 1, 'dead', 0, '', '', '', '' from generate_series(0, {MANY_DEAD})")
    finding = found(url)["many-dead-letters"]
    assert finding.problem.startswith("101 dead letters of 'orders'")
    assert "many-dead-letters" not in found(url, "mails")
    run(url, "delete from unpoison_dead where no = 1")
    assert found(url) == {}


def test_long_transaction(url, monkeypatch):
    monkeypatch.setattr(server_checks, "LONG", 0.0)
    with closing(psycopg.connect(url, application_name="report")) as long, psycopg.connect(url, autocommit=True) as pause:
        long.execute("select 1")
        pause.execute("select pg_advisory_lock(1)")
        long.pgconn.send_query(b"select pg_advisory_lock(1)")  # it is at work, and waits
        long.pgconn.flush()
        finding = until(["long-transaction"], url)["long-transaction"]
        assert f"process {long.info.backend_pid} of 'postgres'" in finding.problem
        assert "(report)" in finding.problem
        mend(url, finding)
    until([], url)


def test_idle_in_transaction(url, monkeypatch):
    monkeypatch.setattr(server_checks, "LONG", 0.0)
    with closing(psycopg.connect(url)) as forgotten:
        forgotten.execute("select 1")
        finding = until(["idle-in-transaction"], url)["idle-in-transaction"]
        mend(url, finding)
        until([], url)
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("select 1")
    with psycopg.connect(url) as new:
        assert new.execute("show idle_in_transaction_session_timeout").fetchone() == ("10min",)


def test_a_transaction_that_has_just_begun_is_none_of_them(url):
    with psycopg.connect(url) as short:
        short.execute("select 1")
        assert found(url) == {}


def test_sessions_that_this_role_may_not_see_are_said_to_be_unseen(url):
    rights = "select, insert, update, delete on all tables in schema public", "usage on sequence unpoison_positions"
    narrow = as_role(url, "narrow", *rights)
    try:
        with psycopg.connect(url) as other:
            other.execute("select 1")
            finding = found(narrow)["cannot-look"]
            assert "transactions that are open for long" in finding.problem
            mend(url, finding)
            assert found(narrow) == {}
    finally:
        drop_role(url, "narrow")


def test_old_prepared_transaction(url, monkeypatch):
    monkeypatch.setattr(server_checks, "LONG", 0.0)
    run(url, "begin", "insert into unpoison_sources (name) values ('x')", "prepare transaction 'it''s old'")
    finding = found(url)["old-prepared-transaction"]
    mend(url, finding)
    assert found(url) == {}


def test_transaction_ids_running_out(url, monkeypatch):
    run(url, *["select pg_current_xact_id()"] * 60)
    with psycopg.connect(url) as connection:
        age = "select age(datfrozenxid) from pg_database where datname = current_database()"
        (before,) = connection.execute(age).fetchone()
    monkeypatch.setattr(server_checks, "OLD_IDS", before - 30)
    finding = found(url)["transaction-ids-running-out"]
    mend(url, finding)
    assert found(url) == {}


def test_connections_running_out(url):
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(closing(psycopg.connect(url)))
        finding = until(["connections-running-out"], url)["connections-running-out"]
        assert "of the 21 connections" in finding.problem
        assert finding.fix.splitlines()[1] == "alter system set max_connections = 48;"
    until([], url)


def test_read_only_replica(private_server):
    """A server that waits for a primary which it does not have: as far as its clients can see, a replica."""
    server = private_server("postgresql")
    open_broker(server.url).close()
    server.stop()
    server.write("data/standby.signal", "")
    server.start()
    finding = found(server.url)["read-only-replica"]
    assert finding.fix.endswith("?target_session_attrs=read-write")
    run(server.url, "select pg_promote()")
    assert found(server.url) == {}
