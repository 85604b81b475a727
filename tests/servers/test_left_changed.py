"""A test that leaves a server changed fails by its own name, and the next one finds the server as it was."""

import os
import signal
import subprocess
import sys

import psycopg
import pytest

from servers.owners import PROJECT
from unpoison.testing.isolation.diary import wait_until

pytestmark = pytest.mark.servers("postgresql", "redis")

SUITE = """
import os, signal, pytest
from tests.servers_plugin import private_or_skip

@pytest.fixture(scope="module")
def server():
    with private_or_skip("redis") as server:
        yield server

def change(server):
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")

def is_as_it_was(server):
    with server.client() as client:
        return client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}

def test_a_changes_and_passes(server): change(server)
def test_b_finds_it_as_it_was(server): assert is_as_it_was(server)
def test_c_freezes_and_fails(server):
    os.kill(server.server_process().pid, signal.SIGSTOP)
    raise AssertionError("before it could be undone")
def test_d_finds_it_as_it_was(server): assert is_as_it_was(server)
def test_e_changes_its_own(private_server): change(private_server("redis"))
def test_f_changes_the_one_of_all(redis): change(redis)
def test_g_is_not_blamed_for_that(redis): redis.fresh()
"""


def test_the_test_that_changed_a_server_fails_by_name_and_no_other(tmp_path):
    (tmp_path / "test_it.py").write_text(SUITE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "UNPOISON_"))}
    options = ["-rA", "-p", "tests.servers_plugin", "--rootdir", str(tmp_path), "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, env=kept, capture_output=True, text=True, check=False, timeout=100)
    lines = done.stdout.splitlines()
    errors = sorted(line.split("::")[1].split()[0] for line in lines if line.startswith("ERROR "))
    passed = sorted(line.split("::")[1][:6] for line in lines if line.startswith("PASSED"))
    assert errors == ["test_a_changes_and_passes", "test_c_freezes_and_fails", "test_f_changes_the_one_of_all"], done.stdout
    assert passed == ["test_a", "test_b", "test_d", "test_e", "test_f", "test_g"], done.stdout
    assert "redis: {'maxmemory-policy': \"'noeviction', now 'allkeys-lru'\"}" in done.stdout
    assert "redis: {'process': 'stands still'}" in done.stdout


def test_what_was_set_on_a_postgresql_is_seen_and_undone(private_server):
    server = private_server("postgresql")
    assert server.changes() == {}
    with psycopg.connect(server.url, autocommit=True) as run:
        run.execute("alter role postgres set work_mem = '1MB'")
        run.execute("alter system set max_connections = 48")
    assert server.changes().keys() >= {"work_mem", "max_connections after a restart"}
    process = server.server_process()
    process.signal(signal.SIGSTOP)
    wait_until(lambda: process.condition == "stands still", lambda: "It goes on")
    assert server.changes() == {"process": "stands still"}
    server.restore()
    assert server.changes() == {}
    with psycopg.connect(server.url) as run:
        assert run.execute("show max_connections").fetchone() == ("200",)
