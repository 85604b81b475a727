"""Each trap of a SQLite file is made for real, found by its name, mended as the finding says, and gone."""

import fcntl
import os
import shlex
import signal
import sqlite3
import stat
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.sqlite_files import opened, query
from unpoison import App
from unpoison.brokers import checks_for, findings_for
from unpoison.brokers.sqlite import doctor, file, schema
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.findings import MANY_DEAD
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop.db"
    opened(path, "orders").close()
    return path


def found(path, *sources, **how):
    return {finding.name: finding for finding in findings_for(f"sqlite:///{path}", sources, **how)}


def losing(path, **how):
    return [finding.name for finding in findings_for(f"sqlite:///{path}", **how) if finding.loses]


def commands(finding):
    """What a person would copy."""
    return finding.fix.splitlines()[1:]


def state(folder):
    """Without opening them: to close a file drops the locks that connections of this process have on it."""
    return {each.name: (each.stat().st_mtime_ns, each.stat().st_size, each.stat().st_ino) for each in folder.rglob("*")}


def test_a_file_in_order_has_no_findings_and_looking_leaves_no_trace(shop):
    before = state(shop.parent)
    assert found(shop, "orders", deep=True) == {}
    assert state(shop.parent) == before


def test_looking_at_a_file_in_use_disturbs_nobody(shop):
    with closing(App(f"sqlite:///{shop}")) as app:
        app.publish("orders", 1)
        before = state(shop.parent)
        assert found(shop, "orders", deep=True) == {}
        assert state(shop.parent) == before
        app.publish("orders", 2)


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        found(tmp_path / "shop.db")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_is_said_to_be_none(tmp_path):
    (tmp_path / "shop.db").write_bytes(b"this is a text, and a long one at that. " * 200)
    with pytest.raises(BrokerUnavailable, match="not an intact SQLite database"):
        found(tmp_path / "shop.db")


def test_network_file_system(shop, tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"30 22 0:25 / {tmp_path} rw shared:2 - nfs4 server:/export rw\n")
    with monkeypatch.context() as patched:  # no server for one here; the kernel's list is replaced, not what is made of it
        patched.setattr(doctor, "kind_of_file_system", lambda folder: file.kind_of_file_system(folder, str(mounts)))
        assert losing(shop) == ["network-file-system"]
        assert "(nfs4)" in found(shop)["network-file-system"].problem
    assert found(shop) == {}


def test_not_writable():
    with tempfile.TemporaryDirectory() as name:
        shop = Path(name) / "shop.db"
        opened(shop, "orders").close()

        for mode, expected in ((0o444, ["not-writable", "readable-by-others"]), (0o666, ["readable-by-others"])):
            shop.parent.chmod(mode | 0o111)
            shop.chmod(mode)
            assert_ordinary_user_finds(expected, shop)


def test_what_its_own_user_may_not_write_needs_no_new_owner():
    with tempfile.TemporaryDirectory() as name:
        shop = Path(name) / "shop.db"
        opened(shop, "orders").close()
        shop.parent.chmod(0o711)
        shop.chmod(0o400)
        os.chown(shop.parent, NOBODY, -1)
        os.chown(shop, NOBODY, -1)

        def mend():
            finding = found(shop)["not-writable"]
            assert finding.stops
            assert commands(finding) == [f"chmod u+w {shop}"]
            subprocess.run(commands(finding)[0], shell=True, check=True)
            assert found(shop) == {}

        as_nobody(mend)


NOBODY = 65534


def as_nobody(work):
    def work_as_nobody():
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)  # for root every file can be written
        work()

    with Child(work_as_nobody) as child:
        assert child.wait() == 0


def assert_ordinary_user_finds(expected, shop, *sources):
    def look():
        assert list(found(shop, *sources)) == expected

    as_nobody(look)


def test_what_unpoison_makes_only_its_own_user_can_read():
    """With the widest umask there is. An existing file keeps its mode, and who may write it may use its locks."""
    for before, modes in ((None, (0o600, 0o700, 0o600)), (0o644, (0o644, 0o700, 0o600)), (0o660, (0o660, 0o770, 0o660))):
        with tempfile.TemporaryDirectory() as name:
            shop = Path(name) / "shop.db"
            if before is not None:
                shop.touch()
                shop.chmod(before)
            mask = os.umask(0)
            try:
                broker = opened(shop, "orders")
                broker.publish(given.messages("orders", 1))
                broker.fetch("orders", 1)
            finally:
                os.umask(mask)
            made = {str(each.relative_to(name)): stat.S_IMODE(each.stat().st_mode) for each in Path(name).rglob("*")}
            broker.close()
            file_, folder, lock = modes
            assert made == {
                "shop.db": file_,
                "shop.db-wal": file_,
                "shop.db-shm": file_,
                "shop.db-owners": folder,
                "shop.db-owners/1": lock,
            }


def test_readable_by_others():
    with tempfile.TemporaryDirectory() as name:
        shop = Path(name) / "shop.db"
        shop.touch(mode=0o644)
        opened(shop, "orders").close()
        assert found(shop) == {}, "nobody else can come this far"
        shop.parent.chmod(0o755)
        finding = found(shop)["readable-by-others"]
        assert f"{shop} (0644)" in finding.problem
        assert (finding.loses, finding.stops) == (False, False)
        subprocess.run(commands(finding)[0], shell=True, check=True)
        assert found(shop) == {}
        shop.parent.chmod(0o700)


def test_disk_full(shop, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(doctor, "FULL", 2**63)
        finding = found(shop)["disk-full"]
    assert f"The disk of '{shop}' is full" in finding.problem
    assert finding.stops
    assert found(shop) == {}


def test_disk_nearly_full(tmp_path):
    def mount(*options):
        return subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", tmp_path], capture_output=True, check=False).returncode

    if mount("-o", "size=1m"):
        pytest.skip("no file system can be mounted here")
    try:
        opened(tmp_path / "shop.db", "orders").close()
        assert "free on the disk" in found(tmp_path / "shop.db")["disk-nearly-full"].problem
        assert mount("-o", "remount,size=256m") == 0
        assert found(tmp_path / "shop.db") == {}
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_not_wal(shop):
    query(shop, "pragma journal_mode=delete")
    finding = found(shop)["not-wal"]
    statement = shlex.split(commands(finding)[0])[2]
    query(shop, statement)
    assert found(shop) == {}


def test_log_grown(shop):
    with closing(App(f"sqlite:///{shop}")) as app, closing(sqlite3.connect(shop, isolation_level=None)) as reader:
        app.publish("orders", 0)
        reader.execute("begin")
        reader.execute("select * from unpoison_sources").fetchall()
        app.publish_many("orders", [bytes(2**20)] * (file.LOG_LIMIT // 2**20 + 1))
        finding = found(shop)["log-grown"]
        assert f"process {os.getpid()}" in finding.problem
        reader.execute("commit")
        app.publish("orders", 1)  # moves what is in the log to the file,
        app.publish("orders", 2)  # and this one begins it anew
        assert found(shop) == {}


def test_file_locked(shop, monkeypatch):
    monkeypatch.setattr(doctor, "HELD_TOO_LONG", 0.1)
    with closing(sqlite3.connect(shop, isolation_level=None)) as program:
        program.execute("begin immediate")
        finding = found(shop)["file-locked"]
        assert commands(finding) == [f"kill {os.getpid()}"]
        program.execute("commit")
        assert found(shop) == {}


def test_writers_that_take_turns_are_not_taken_for_one_that_holds_the_file(shop, monkeypatch):
    monkeypatch.setattr(doctor, "HELD_TOO_LONG", 0.3)
    begun, enough = Gate("begun"), Gate("enough")

    def write():
        with closing(sqlite3.connect(shop, isolation_level=None)) as program:
            while not enough.is_open():
                program.execute("begin immediate")
                begun.open()
                program.execute("insert into unpoison_owners (host, pid, since) values ('h', 1, 0)")
                program.execute("delete from unpoison_owners")
                program.execute("commit")

    with Child(write) as child:
        begun.wait()
        for _ in range(5):
            assert "file-locked" not in found(shop)
        enough.open()
        assert child.wait() == 0


def test_tables_missing(tmp_path):
    shop = tmp_path / "shop.db"
    query(shop, "pragma journal_mode=wal")
    query(shop, "create table invoices (no integer)")
    assert commands(found(shop)["tables-missing"]) == [f"unpoison migrate sqlite:///{shop}"]
    opened(shop).close()
    assert found(shop) == {}


def test_tables_older(shop, monkeypatch):
    more = (*schema.MIGRATIONS, "create table unpoison_more (no integer)")
    monkeypatch.setattr(schema, "MIGRATIONS", more)
    assert commands(found(shop)["tables-older"]) == [f"unpoison migrate sqlite:///{shop}"]
    with closing(file.connect(str(shop))) as connection:
        schema.migrate(connection, str(shop), create=True, migrations=more)
    assert found(shop) == {}


def test_tables_newer(shop):
    query(shop, "update unpoison_version set version = 99")
    assert "version 99" in found(shop)["tables-newer"].problem
    query(shop, "update unpoison_version set version = 1")
    assert found(shop) == {}


def test_source_missing(shop):
    assert "there are: 'orders'" in found(shop, "ordres")["source-missing"].problem
    opened(shop, "ordres").close()
    assert found(shop, "ordres") == {}


def test_vanished_consumer(shop):
    with closing(App(f"sqlite:///{shop}")) as app:
        app.publish_many("orders", range(3))
    told, leave = Gate("told"), Gate("leave")

    def vanish():
        opened(shop, "orders").fetch("orders", 10)
        told.open()
        leave.wait()
        os._exit(0)

    with Child(vanish) as child:
        told.wait()
        assert found(shop) == {}, "it is alive"
        leave.open()
        child.wait()
    finding = found(shop)["vanished-consumer"]
    assert "held 3 messages" in finding.problem
    broker = opened(shop, "orders")
    assert len(broker.fetch("orders", 10)) == 3
    assert found(shop) == {}
    broker.close()


def test_lock_held_by_somebody_who_is_no_consumer(shop):
    with closing(App(f"sqlite:///{shop}")) as app:
        app.publish_many("orders", range(3))
    fetched, locked, leave = Gate("fetched"), Gate("locked"), Gate("leave")

    def consume():
        opened(shop, "orders").fetch("orders", 10)
        fetched.open()
        leave.wait()
        os._exit(0)

    def hold():
        lock = os.open(f"{shop}-owners/1", os.O_RDONLY)  # it could be opened, once
        as_user_nobody()
        locked.open()
        fcntl.flock(lock, fcntl.LOCK_EX)
        signal.pause()

    with Child(consume) as consumer:
        fetched.wait()
        with Child(hold) as holder:
            locked.wait()
            assert found(shop) == {}, "the consumer lives"
            leave.open()
            consumer.wait()
            wait_until(lambda: "lock-held" in found(shop), lambda: str(found(shop)))
            finding = found(shop)["lock-held"]
            assert f"still locked by process {holder.pid} (" in finding.problem
            assert ", user nobody)" in finding.problem or os.getuid()
            assert "held: 3 messages." in finding.problem
            assert finding.stops
            assert commands(finding) == [f"kill {holder.pid}"]
            os.kill(holder.pid, signal.SIGTERM)
            holder.wait()
    assert list(found(shop)) == ["vanished-consumer"]


def as_user_nobody():
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def test_lock_held_by_a_process_that_the_consumer_left_behind(shop):
    with closing(App(f"sqlite:///{shop}")) as app:
        app.publish_many("orders", range(3))

    def consume():
        broker = opened(shop, "orders")
        broker.fetch("orders", 10)
        subprocess.Popen(["sleep", "600"], pass_fds=broker.inherited_fds(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os._exit(0)

    with Child(consume) as consumer:
        consumer.wait()
        finding = found(shop)["lock-held"]
    (command,) = commands(finding)
    assert f"(process {consumer.pid}) has ended" in finding.problem
    assert "(sleep, user " in finding.problem
    os.kill(int(command.removeprefix("kill ")), signal.SIGKILL)
    wait_until(lambda: list(found(shop)) == ["vanished-consumer"], lambda: str(found(shop)))


def test_what_this_user_may_not_see_is_said_and_the_rest_is_looked_at():
    with tempfile.TemporaryDirectory() as name:
        shop = Path(name) / "shop.db"
        broker = opened(shop, "orders")
        with closing(App(f"sqlite:///{shop}")) as app:
            app.publish("orders", 1)
        broker.fetch("orders", 1)
        shop.parent.chmod(0o777)
        for each in shop.parent.glob("shop.db*"):
            each.chmod(0o700 if each.is_dir() else 0o666)

        shared = "readable-by-others"
        for expected in (["not-writable", shared, "source-missing", "cannot-look"], [shared, "source-missing"]):
            assert_ordinary_user_finds(expected, shop, "mails")
            (shop.parent / "shop.db-owners").chmod(0o777)
            for each in (shop.parent / "shop.db-owners").iterdir():
                each.chmod(0o666)
        broker.close()


def test_many_dead_letters(shop):
    letter = (
        "insert into unpoison_dead (source, state, replays, fingerprint, id, body, record) values (1, 'dead', 0, '', '', '', '')"
    )
    for _ in range(MANY_DEAD + 1):
        query(shop, letter)
    finding = found(shop)["many-dead-letters"]
    assert finding.problem.startswith("101 dead letters of 'orders'")
    assert found(shop, "orders") == {"many-dead-letters": finding}
    assert "many-dead-letters" not in found(shop, "mails")
    query(shop, "delete from unpoison_dead where no = 1")
    assert found(shop) == {}


def test_damaged_is_found_only_by_a_look_at_the_whole_file(shop):
    with closing(App(f"sqlite:///{shop}")) as app:
        app.publish_many("orders", [b"x" * 1000] * 100)
    content = shop.read_bytes()
    page = content.index(b"x" * 1000) // 4096 * 4096
    shop.write_bytes(content[:page] + b"\xff" * 100 + content[page + 100 :])
    assert "damaged" not in found(shop)
    assert losing(shop, deep=True) == ["damaged"]
    shop.write_bytes(content)
    assert found(shop, deep=True) == {}
    assert set(checks_for("sqlite:///x", deep=True)) - set(checks_for("sqlite:///x")) == {"damaged"}
