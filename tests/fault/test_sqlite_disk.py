"""A disk that is full, a file that cannot be written: the queue is paused, says so once, loses nothing and goes on."""

import os
import resource
import sqlite3
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest

from unpoison import App, BrokerUnavailable, Permanent
from unpoison.flow import ending
from unpoison.testing import given
from unpoison.testing.processes import Child, Effects, Gate
from unpoison.testing.running import Journal, Running

LARGE = b"x" * 100_000
"""More than what is free on the full disk, so that storing it needs new space."""


class SmallDisk:
    """A file system of one mebibyte, and a file that takes what is left of it."""

    def __init__(self, folder):
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self):
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(4096)):
                pass

    def free(self):
        self._ballast.unlink()


class SmallFiles:
    """No file of this process can become larger than the log is now; a new log has room for no more than its header."""

    def __init__(self, folder):
        self.folder = folder
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self):
        log = self.folder / "shop.db-wal"
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size if log.exists() else 4096, self._before[1]))

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture(params=["a full disk", "a limit on file sizes"])
def disk(request, tmp_path):
    if request.param == "a limit on file sizes":
        disk = SmallFiles(tmp_path)
        yield disk
        disk.free()
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here; the limit on file sizes is tried instead")
    yield SmallDisk(tmp_path)
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Tries follow each other at once."""
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.01,))


def test_what_cannot_be_stored_is_refused_and_what_was_stored_stays(disk):
    with closing(App(f"sqlite:///{disk.folder}/shop.db")) as app:
        app.publish("orders", b"before")
        disk.fill()
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match=r"[Nn]othing|Only what was confirmed counts"):
                app.publish("orders", LARGE)
        disk.free()
        app.publish("orders", b"after")
        received = []

        def handle(payload: bytes) -> None:
            received.append(payload)

        given.consumer(app, "orders", handle).run(until_empty=True)
    assert received == [b"before", b"after"]


def test_a_consumer_waits_while_a_dead_letter_has_no_room_and_then_stores_it_once(disk):
    with closing(App(f"sqlite:///{disk.folder}/shop.db", prefetch=3)) as app:
        starts = []

        def handle(payload: bytes) -> None:
            starts.append(len(payload))
            if payload == LARGE:
                disk.fill()
                raise Permanent("poison")

        given.consumer(app, "orders", handle)
        app.publish_many("orders", [b"1", LARGE, b"333", b"4444", b"55555"])
        with Journal() as journal, Running(app, until_empty=True) as running:
            journal.wait_for("pause")
            assert starts == [1, len(LARGE), 3]
            disk.free()
            tally = running.wait()["orders"]
        assert len(journal.of("pause")) == len(journal.of("resume")) == 1
        assert starts == [1, len(LARGE), 3, 4, 5]
        assert (tally.done, tally.dead) == (4, 1)
        assert [letter.body for letter in app.dlq("orders").letters()] == [LARGE]


def test_a_consumer_that_starts_on_a_full_disk_waits_and_goes_on(disk):
    with closing(App(f"sqlite:///{disk.folder}/shop.db")) as app:
        handled = []

        def handle(number: int) -> None:
            handled.append(number)

        given.consumer(app, "orders", handle)
        app.publish_many("orders", range(5))
        app.close()  # the last connection leaves no log behind, so that the next one has to make one
        disk.fill()
        with Journal() as journal, Running(app, until_empty=True) as running:
            journal.wait_for("pause")
            assert handled == []
            disk.free()
            running.wait()
        assert len(journal.of("pause")) == 1
        assert handled == [0, 1, 2, 3, 4]


def test_a_consumer_that_may_not_write_the_file_waits_and_goes_on_when_it_may():
    with tempfile.TemporaryDirectory() as name:
        folder, effects = Path(name), Effects(Path(name), "effects")
        told = Gate("told")
        with closing(App(f"sqlite:///{folder}/shop.db")) as app:
            app.publish_many("orders", range(5))
        effects.add("begin")
        _may_be_written(folder, False)

        def handle(number: int) -> None:
            effects.add(f"done {number}")

        def consume() -> None:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)  # for root every file can be written
            with Journal(pause=told.open) as journal:
                given.consumer(App(f"sqlite:///{folder}/shop.db"), "orders", handle).run(until_empty=True)
            assert len(journal.of("pause")) == 1, journal.of("pause")
            assert "cannot be written by this user" in journal.of("pause")[0]

        with Child(consume) as child:
            told.wait()
            assert effects.lines() == ["begin"]
            _may_be_written(folder, True)
            assert child.wait() == 0
        assert effects.lines() == ["begin", *(f"done {number}" for number in range(5))]


def _may_be_written(folder, allowed):
    folder.chmod(0o777 if allowed else 0o555)
    for name in ("shop.db", "effects"):
        (folder / name).chmod(0o666 if allowed else 0o444)


def test_a_program_that_holds_the_file_for_too_long_is_named_and_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("unpoison.brokers.sqlite.errors.BUSY_TIMEOUT", 0.05)
    file = tmp_path / "shop.db"
    with closing(App(f"sqlite:///{file}")) as app, closing(sqlite3.connect(file, isolation_level=None)) as program:
        handled = []

        def handle(number: int) -> None:
            handled.append(number)

        given.consumer(app, "orders", handle)
        app.publish("orders", 1)
        program.execute("begin immediate")
        with pytest.raises(BrokerUnavailable, match=r"Another program held a write transaction for more than 0\.05 s"):
            app.publish("orders", 2)
        with Journal() as journal, Running(app, until_empty=True) as running:
            journal.wait_for("pause")
            program.execute("commit")
            running.wait()
        assert len(journal.of("pause")) == 1
        assert handled == [1]
