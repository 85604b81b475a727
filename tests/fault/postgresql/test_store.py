"""What happens to consumers whose store is a PostgreSQL server that is killed, stands still, or permits too little."""

import logging
import os
import signal
import threading
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.fault.planned_topology import run_script
from tests.unit.stores import Clock, opened, outage, paused, sign
from unpoison import App
from unpoison.app_internals import runnable
from unpoison.cli.topology import Apps, Part, script
from unpoison.errors import StoreUnavailable
from unpoison.flow import store_link
from unpoison.flow.run import Run
from unpoison.store.provisioning import needs as needs_of
from unpoison.testing import given
from unpoison.testing.processes import PATIENCE


class Lines(logging.Handler):
    """What is logged about the store. Each line can be waited for."""

    def __init__(self):
        super().__init__()
        self.events, self.changed = [], threading.Condition()

    def emit(self, record):
        if "store" in getattr(record, "event", ""):
            with self.changed:
                self.events.append(record.event)
                self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, PATIENCE), self.events


@pytest.fixture
def lines():
    handler, log = Lines(), logging.getLogger("unpoison")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(store_link, "EXCHANGE_EVERY", 0.02)


@pytest.mark.long
def test_a_store_that_is_killed_in_the_middle_stops_no_message_and_is_used_again_once_it_is_back(
    private_server, tmp_path, lines, often
):
    server, handled = private_server("postgresql"), threading.Semaphore(0)
    app = App(f"sqlite:///{tmp_path}/shop.db", store=server.url)
    given.consumer(app, "orders", lambda order: handled.release(), isolation="thread")
    run = Run([runnable(app)])
    thread = threading.Thread(target=run.serve)
    thread.start()
    try:
        _handle_some(app, handled)
        server.kill_hard()
        lines.wait_for(1)
        _handle_some(app, handled)
        server.start()
        lines.wait_for(2)
        _handle_some(app, handled)
        operators = opened(server.url)
        assert len(operators.consumers("orders")) == 1
        operators.close()
    finally:
        run.stop()
        thread.join(PATIENCE)
    assert lines.events == ["store-away", "store-back"]


def _handle_some(app, handled):
    app.publish_many("orders", range(50))
    for _ in range(50):
        assert handled.acquire(timeout=PATIENCE)


@pytest.mark.long
def test_a_server_that_stands_still_keeps_nobody_waiting_at_the_start_nor_at_the_end(
    private_server, tmp_path, monkeypatch, lines
):
    server = private_server("postgresql")
    opened(server.url).close()
    monkeypatch.setattr(store_link, "FIRST_WITHIN", 0.1)
    app = given.consumer(App(f"sqlite:///{tmp_path}/shop.db", store=server.url), "orders", lambda order: None)
    app.publish("orders", 1)
    stopped = server.server_process().pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert app.run(until_empty=True).sources["orders"].done == 1
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_role_with_exactly_the_printed_rights_can_use_the_store_and_no_other(postgresql, tmp_path):
    owners = postgresql.fresh()
    role = f"fleet of {urlsplit(owners).path[1:]}"
    with psycopg.connect(owners, autocommit=True) as connection:
        connection.execute(f"create role \"{role}\" login password 'secret'")
    url = f"{owners}{'&' if '?' in owners else '?'}user={role.replace(' ', '%20')}&password=secret"
    try:
        assert [step.kind for step in needs_of(owners, role).missing()] == ["tables", "rights"]
        opened(owners).close()
        with pytest.raises(StoreUnavailable, match=r"permission denied.*Grant this user the rights"):
            opened(url)
        needs, parts = needs_of(owners, role), urlsplit(owners)
        login = {"PGUSER": parts.username} | ({"PGPASSWORD": parts.password} if parts.password else {})
        run_script(script([Part(Apps(owners, ["the fleet"]), needs)]), tmp_path, **login)
        assert needs_of(owners, role).missing() == []
        _use(opened(url, clock := Clock(), create=False), clock)
    finally:
        with psycopg.connect(owners, autocommit=True) as connection:
            connection.execute(f'drop owned by "{role}"')
            connection.execute(f'drop role "{role}"')


def _use(store, clock):
    (circuit,) = store.exchange(sign(version="1"), [outage(clock, next_probe_at=clock.now)]).circuits
    assert store.claim_probe("orders", circuit.dependency, 2.0, "a:1")
    store.close_circuit("orders", circuit.dependency)
    store.pause(paused())
    assert len(store.resume("orders", "ada@desk")) == 1
    store.leave("a:1", "orders")
    store.close()


def test_by_the_servers_clock_the_clocks_of_hosts_do_not_matter(postgresql, monkeypatch):
    store = opened(postgresql.fresh())
    monkeypatch.setattr("time.time", lambda: 5.0)
    now = store.exchange(sign(), []).now
    store.pause(paused())
    assert now > 1_600_000_000
    assert 0 <= store.pauses()[0].since - now < PATIENCE
    store.close()
