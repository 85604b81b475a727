"""What happens where a server cannot be had? Nothing is uninstalled for it: the places are made up, the rest is real."""

import os
import subprocess
import sys

import pytest

import servers
from servers import ServerMissing, places
from servers.owners import PROJECT
from servers.places import DO_NOT_START, DebianRoot, Machine
from tests.servers_plugin import loud_lines

NOWHERE = Machine(("no-such-package",), ("/no/such/program",))
# Two tests of a server that is nowhere, run by a pytest of their own.
SUITE = """
import pytest, servers
from dataclasses import replace
from servers import entries, places, ServerMissing

class Nowhere:
    def get(self):
        raise ServerMissing("it is not installed. Run: sudo apt-get install it")

entries.ENTRIES["postgresql"] = replace(entries.ENTRIES["postgresql"], place=Nowhere())

def test_one(postgresql): pass
def test_two(private_server): private_server("postgresql")
"""


def run_suite(tmp_path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_it.py").write_text(SUITE)
    kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.servers_plugin",
        "--rootdir",
        str(tmp_path),
        "-c",
        os.devnull,
        *options,
    ]
    return subprocess.run(
        [*command, str(tmp_path)], cwd=PROJECT, env=kept | environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_its_tests_are_skipped_and_one_loud_line_says_so(tmp_path, options):
    done = run_suite(tmp_path, *options)
    assert done.returncode == 0, done.stdout
    assert "2 skipped" in done.stdout
    loud = [line for line in done.stdout.splitlines() if line.startswith("SERVER MISSING")]
    assert len(loud) == 1
    assert "postgresql: it is not installed. Run: sudo apt-get install it" in loud[0]
    assert "UNPOISON_TEST_POSTGRESQL_URL" in loud[0]
    assert loud[0].endswith("(2 tests did not run)")


def test_with_ci_they_fail(tmp_path):
    done = run_suite(tmp_path, CI="true")
    assert done.returncode == 1, done.stdout
    assert "skipped" not in done.stdout
    assert "With CI=true that is a failure." in done.stdout


def test_each_server_has_its_line():
    texts = [
        "Skipped: SERVER MISSING: a: why",
        "SERVER MISSING: a: why",
        "Skipped: SERVER MISSING: b: why\nmore",
        "another reason",
    ]
    assert loud_lines(texts) == ["SERVER MISSING: a: why (2 tests did not run)", "SERVER MISSING: b: why (1 tests did not run)"]


def test_a_name_that_is_no_server_is_answered_with_those_that_are():
    with pytest.raises(servers.ServerFailed, match=r"no server is called 'postgres'. There are: postgresql, pgbouncer"):
        servers.get("postgres")


@pytest.fixture
def apt(monkeypatch, tmp_path) -> list[dict]:
    """What apt-get is called with, without calling it, and whether services may start meanwhile."""
    calls = []

    def run(command):
        calls.append({"command": command, "policy": places.POLICY.read_text() if places.POLICY.exists() else None})
        return subprocess.CompletedProcess(command, 100, stdout="E: Unable to locate package\n")

    monkeypatch.setattr(places, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(places, "_run", run)
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setattr(places, "state_folder", lambda: tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return calls


def test_as_root_it_is_installed_by_name_and_its_service_is_not_started(apt):
    with pytest.raises(ServerMissing, match=r"no-such-package could not be installed: E: Unable to locate package"):
        NOWHERE.get()
    assert [call["command"][1] for call in apt] == ["install", "update", "install"]
    assert "--no-install-recommends" in apt[0]["command"]
    assert all(call["policy"] == DO_NOT_START for call in apt)
    assert not places.POLICY.exists()


def test_a_policy_of_somebody_else_stays(apt):
    places.POLICY.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(ServerMissing):
        NOWHERE.get()
    assert {call["policy"] for call in apt} == {"#!/bin/sh\nexit 0\n"}
    assert places.POLICY.read_text() == "#!/bin/sh\nexit 0\n"


def test_a_policy_that_a_killed_installation_has_left_goes(apt):
    places.POLICY.write_text(DO_NOT_START)
    with pytest.raises(ServerMissing):
        NOWHERE.get()
    assert not places.POLICY.exists()


def test_without_root_it_is_said_what_is_missing(apt, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 1000)
    with pytest.raises(ServerMissing, match=r"Run: sudo apt-get install --no-install-recommends no-such-package"):
        NOWHERE.get()
    assert apt == []


def test_a_debian_root_that_cannot_be_made_leaves_nothing(apt, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "_mirror", lambda: "http://127.0.0.1:9/debian")
    root = DebianRoot("forky", ("something",))
    with pytest.raises(ServerMissing, match=r"no Debian forky with something could be made: E: Unable"):
        root.get()
    assert not root.folder.exists()


def test_the_help_names_every_server():
    done = subprocess.run([sys.executable, "-m", "servers", "--help"], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert all(name in " ".join(done.stdout.split()) for name in servers.ENTRIES)
