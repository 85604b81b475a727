import json
import os
import re
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.command_line import LIMIT, UNPOISON, environment, terminal, unpoison
from unpoison.cli.demo.shop import KINDS, message_id, traffic
from unpoison.testing.isolation.diary import wait_until

MESSAGES, SEED = 60, 1
FEW = ("--messages", str(MESSAGES), "--seed", str(SEED))
MOVES_THE_CURSOR = re.compile(rb"\x1b\[(?:\?25|\d*[A-HJK])")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def ended(temporary):
    """One demo that several tests look at."""
    return unpoison("demo", *FEW, "--json", cwd=temporary, TMPDIR=str(temporary))


@pytest.fixture(scope="module")
def told(ended):
    assert ended.code == 0, ended.err
    return ended.json


def test_every_order_is_accounted_for(told):
    assert told["published"] == MESSAGES == told["done"] + told["dead"] + told["discarded"] + told["waiting"]
    assert (told["dead"], told["discarded"], told["waiting"], told["lost"]) == (13, 1, 0, 0)
    assert told["seed"] == SEED
    assert told["url"].startswith("sqlite:////")


def test_each_poison_ends_as_its_kind_must_and_no_innocent_is_dead(told):
    ends = {poison["kind"]: (poison["fate"], poison["classification"]) for poison in told["poison"]}
    assert ends == {kind.name: (kind.fate, kind.classification) for kind in KINDS}
    letters = [poison["letter"] for poison in told["poison"] if poison["fate"] == "dead"]
    assert len(set(letters)) == told["dead"]


def test_each_poison_is_explained_and_timed(told):
    by_kind = {poison["kind"]: poison for poison in told["poison"]}
    assert all(poison["diagnosis"] for poison in told["poison"])
    for kind in ("segfault", "os._exit", "eats memory", "hangs", "flaky dependency"):
        assert by_kind[kind]["starts"] >= 2, kind
        assert by_kind[kind]["took"] > 0, kind
    assert by_kind["hangs"]["took"] > 0.5
    for kind in ("truncated JSON", "wrong encoding", "missing field", "integer overflow", "too large"):
        assert (by_kind[kind]["starts"], by_kind[kind]["took"]) == (0, None), kind
    assert by_kind["kills its consumer"]["starts"] == told["restarts"] == 4
    assert told["worker_deaths"] >= 3


def test_the_plain_loop_is_stopped_by_the_first_message_that_harms_its_process(told):
    plain, orders = told["plain_loop"], traffic(MESSAGES, SEED)
    harmful = ("segfault", "os._exit", "hangs", "kills its consumer")
    first = min(number for number, kind in orders.poison.items() if kind.name in harmful)
    assert (plain["stuck_at"], plain["stuck_on"]) == (message_id(first), orders.poison[first].name)
    assert plain["done"] == sum(number not in orders.poison for number in range(1, first))
    assert plain["sound"] == plain["done"] + plain["waiting"] == MESSAGES - len(KINDS)
    assert plain["lost"] == 0


def test_progress_goes_to_standard_error_where_json_is_asked_for(ended):
    assert "Published 60 orders" in ended.err
    assert "(segfault): dead, crash: the worker process that ran it was killed by SIGSEGV" in ended.err


def test_in_a_pipe_it_is_plain_text_and_the_file_and_the_three_commands_work(tmp_path, told, temporary):
    mine = tmp_path / "unpoison-demo.db"
    mine.write_text("not to be overwritten")
    ended = unpoison("demo", *FEW, "--keep", cwd=tmp_path, TMPDIR=str(temporary))
    assert ended.code == 0, ended.err
    assert b"\x1b" not in ended.out
    assert "\npublished 60 = done 46 + dead 13 + discarded 1 + waiting 0, lost 0\n" in ended.text
    assert all(kind.name in ended.text for kind in KINDS)
    assert mine.read_text() == "not to be overwritten"
    assert (tmp_path / "unpoison-demo-2.db").exists()
    assert not list(temporary.glob("unpoison-demo-*")), "the file of the demo before is removed, and this one left nothing else"
    commands = ended.text.partition("Try next:\n\n")[2].strip().split("\n")
    ls, show, replay = (
        subprocess.run(["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
        for command in commands
    )
    assert ls.count("orders-") == 13
    assert "SIGSEGV" in show
    assert "Stack when it crashed" in show
    assert re.fullmatch(r"Replayed orders-\d+\.\n", replay)


@pytest.mark.parametrize(
    ("variables", "sign", "moves"), [({}, b"POISON", True), ({"NO_COLOR": "1"}, b" s  order-", False)], ids=["live", "plain"]
)
def test_stopped_on_a_terminal_it_ends_all_that_it_started(tmp_path, variables, sign, moves):
    with terminal(100) as (master, slave):
        process = subprocess.Popen(
            [*UNPOISON, "demo", *FEW],
            cwd=tmp_path,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TMPDIR=str(tmp_path), **variables),
        )
        os.close(slave)
        shown = _until(master, sign)
        wait_until(lambda: len(_started_by(process.pid)) >= 2, lambda: "the demo started nothing")  # workers come and go
        process.send_signal(signal.SIGINT)
        shown += _until(master, b"\x00 never written")
        assert process.wait(LIMIT) == 130
    assert b"The demo was stopped. Every process it started has ended. Its file is removed." in shown
    assert bool(MOVES_THE_CURSOR.search(shown)) == moves
    assert _started_by(process.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_an_order_that_is_really_lost_is_missed(tmp_path):
    process = subprocess.Popen(
        [*UNPOISON, "demo", *FEW, "--keep", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(TMPDIR=str(tmp_path)),
    )
    with process:
        assert any(b"(truncated JSON): dead" in line for line in process.stderr)
        with closing(sqlite3.connect(tmp_path / "unpoison-demo.db", timeout=LIMIT)) as thief:
            assert thief.execute("delete from unpoison_dead where no = (select min(no) from unpoison_dead)").rowcount == 1
            thief.commit()
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, err
    told = json.loads(out)
    assert (told["dead"], told["lost"]) == (12, 1)


def test_too_few_messages_are_refused(tmp_path):
    ended = unpoison("demo", "--messages", "5", cwd=tmp_path)
    assert ended.code == 2
    assert "5 is not in the range 32<=x<=10000" in ended.err


def _until(master: int, sign: bytes) -> bytes:
    """What is written up to and with the sign, or until nobody writes any more."""
    shown = b""
    with open(master, "rb", buffering=0, closefd=False) as screen:
        while sign not in shown:
            try:
                shown += screen.read(65536) or b""
            except OSError:  # how Linux says that the last one at the other end has gone
                break
    return shown


def _started_by(demo: int) -> list[int]:
    """The processes that carry this demo's mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_SUPERVISOR={demo}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # gone, or somebody else's
            continue
    return found
