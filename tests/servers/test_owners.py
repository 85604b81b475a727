"""Who ends a server whose owner no longer can, and is nobody else ever hit?"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from servers import Owner
from servers.files import write_json
from servers.owners import PROJECT, clear_stale, recorded_processes
from servers.processes import Process, launch, wait_until_gone

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# Starts one and says where, then waits for its end.
OWNER = "import servers, time; print(servers.shared('postgresql', servers.Owner.own()).folder, flush=True); time.sleep(600)"


@pytest.fixture
def sleeper(tmp_path) -> Iterator[Process]:
    process = launch(SLEEPER, folder=tmp_path, log=tmp_path / "sleeper.log", environment=os.environ)
    yield process
    process.signal(signal.SIGKILL)
    assert wait_until_gone([process], 10)


def dead_process() -> Process:
    with subprocess.Popen(SLEEPER) as child:
        process = Process.of(child.pid)
        child.kill()
    assert process is not None
    return process


def leave_record(owner: Owner, process: Process) -> None:
    folder = owner.folder / "something"
    folder.mkdir(parents=True)
    record = {"name": "postgresql", "ports": {}, "processes": {"server": [process.pid, process.started]}}
    write_json(folder / "record.json", record)


def test_what_a_dead_owner_has_left_is_ended_and_removed(tmp_path, sleeper):
    owner = Owner.of(dead_process(), tmp_path / "state")
    leave_record(owner, sleeper)
    clear_stale(owner.state)
    assert not sleeper.alive
    assert not owner.folder.exists()


def test_a_process_that_got_the_id_of_a_dead_server_is_left_alone(tmp_path, sleeper):
    owner = Owner.of(dead_process(), tmp_path / "state")
    leave_record(owner, Process(sleeper.pid, "earlier"))
    clear_stale(owner.state)
    assert sleeper.alive
    assert not owner.folder.exists()


def test_servers_of_living_owners_and_of_nobody_are_left_alone(tmp_path, sleeper):
    for owner in (Owner.own(tmp_path / "state"), Owner.nobody(tmp_path / "state")):
        leave_record(owner, sleeper)
        clear_stale(owner.state)
        assert sleeper.alive
        assert owner.folder.exists()


def test_an_owner_whose_id_was_given_to_somebody_else_is_gone(tmp_path):
    assert Owner.of(Process(os.getpid(), "earlier"), tmp_path).is_gone
    assert not Owner.own(tmp_path).is_gone


@pytest.mark.servers("postgresql")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_does_not_outlive_its_owner(number, postgresql):
    if postgresql.given:
        pytest.skip("needs a PostgreSQL that is started here")
    with subprocess.Popen([sys.executable, "-c", OWNER], **child()) as process:
        folder = Path(process.stdout.readline().strip())
        running = recorded_processes(folder.parent)
        assert running
        assert all(each.alive for each in running)
        process.send_signal(number)
        process.wait()
    assert wait_until_gone(running, 30)
    assert gone(folder.parent)


@pytest.mark.servers("postgresql")
def test_run_stops_everything_at_ctrl_c(postgresql):
    with subprocess.Popen([sys.executable, "-m", "servers", "run", "postgresql"], **child()) as process:
        lines = []
        while not lines or not lines[-1].startswith("They run"):
            lines.append(process.stdout.readline())
            assert lines[-1], "ended early"
        assert lines[0].startswith("export UNPOISON_TEST_POSTGRESQL_URL=postgresql://")
        owner = Owner.of(Process.of(process.pid))
        running = recorded_processes(owner.folder)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert running
    # Nobody else is needed for it: no waiting here.
    assert not any(each.alive for each in running)
    assert not owner.folder.exists()


@pytest.mark.servers("postgresql")
def test_processes_that_ask_at_the_same_time_share_one_server(postgresql, sleeper):
    if postgresql.given:
        pytest.skip("needs a PostgreSQL that is started here")
    owner = Owner.of(sleeper)
    ask = (
        "import servers; from servers.processes import Process; "
        f"print(servers.shared('postgresql', servers.Owner.of(Process({sleeper.pid}, {sleeper.started!r}))).url)"
    )
    asking = [subprocess.Popen([sys.executable, "-c", ask], **child()) for _ in range(3)]
    try:
        answers = {process.communicate()[0].strip() for process in asking}
        assert answers == {server.url for server in servers.running(owner)}
        assert len(answers) == 1
        assert [process.returncode for process in asking] == [0, 0, 0]
    finally:
        servers.stop_all(owner)


def child() -> dict:
    return {"cwd": PROJECT, "stdout": subprocess.PIPE, "text": True}


def gone(folder: Path) -> bool:
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()
