"""What do a heartbeat file and systemd hear, and what if they cannot?"""

import logging
import os
import socket
from contextlib import closing

import pytest

from unpoison.observing.heartbeat import TOUCH_EVERY, HeartbeatFile, Systemd


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def aged(path, seconds=1_000):
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)
    return path.stat().st_mtime


def test_the_time_of_the_file_is_renewed_every_few_seconds(tmp_path, clock):
    path = tmp_path / "alive"
    heartbeat = HeartbeatFile(str(path), clock)
    heartbeat.turns()
    before = aged(path)
    heartbeat.turns()
    assert path.stat().st_mtime == before
    clock.now += TOUCH_EVERY
    heartbeat.turns()
    assert path.stat().st_mtime > before
    heartbeat.remove()
    heartbeat.remove()
    assert not path.exists()


def test_a_file_that_others_have_removed_is_made_again(tmp_path, clock):
    path = tmp_path / "alive"
    heartbeat = HeartbeatFile(str(path), clock)
    heartbeat.turns()
    path.unlink()
    clock.now += TOUCH_EVERY
    heartbeat.turns()
    assert path.exists()


def test_a_file_that_cannot_be_written_is_told_once_a_minute_and_when_it_can_again(tmp_path, clock, caplog):
    folder = tmp_path / "later"
    heartbeat = HeartbeatFile(str(folder / "alive"), clock)
    with caplog.at_level(logging.WARNING, "unpoison"):
        for _ in range(12):
            heartbeat.turns()
            clock.now += TOUCH_EVERY
        assert [record.event for record in caplog.records] == ["heartbeat-failed"]
        assert "cannot be written: No such file or directory. Messages are consumed all the same" in caplog.text
        heartbeat.turns()
        assert len(caplog.records) == 2
        folder.mkdir()
        clock.now += TOUCH_EVERY
        heartbeat.turns()
        heartbeat.turns()
    assert [record.event for record in caplog.records][2:] == ["heartbeat-resumed"]


def test_a_pipe_without_a_reader_does_not_hold_it_up(tmp_path, clock, caplog):
    os.mkfifo(tmp_path / "alive")
    HeartbeatFile(str(tmp_path / "alive"), clock).turns()
    assert "cannot be written" in caplog.text


# systemd


@pytest.fixture(params=["a file", "a name"])
def manager(request, tmp_path):
    """A socket that stands for systemd, and the address that a service gets of it."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        path = str(tmp_path / "notify") if request.param == "a file" else f"\0unpoison-test-{os.getpid()}-{id(tmp_path)}"
        listener.bind(path)
        listener.setblocking(False)
        yield listener, path.replace("\0", "@")


def heard(listener):
    found = []
    while True:
        try:
            found.append(listener.recv(4_096).decode())
        except BlockingIOError:
            return found


def test_systemd_hears_each_piece_of_news_once(manager):
    listener, address = manager
    systemd = Systemd.of({"NOTIFY_SOCKET": address})
    systemd.tell(READY="1", STATUS="Consuming orders.")
    systemd.tell(READY="1", STATUS="orders: paused.")
    systemd.tell(READY="1", STATUS="orders: paused.")
    systemd.turns()
    systemd.close()
    assert heard(listener) == ["READY=1\nSTATUS=Consuming orders.", "STATUS=orders: paused."]


def test_the_watchdog_is_told_at_half_of_its_time(manager, clock):
    listener, address = manager
    systemd = Systemd(address, 30.0, clock)
    for _ in range(31):
        systemd.turns()
        clock.now += 1.0
    systemd.close()
    assert heard(listener) == ["WATCHDOG=1"] * 3  # at once, after 15 s, after 30 s


@pytest.mark.parametrize(
    ("more", "due"),
    [
        ({"WATCHDOG_USEC": "20000000"}, True),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({}, False),
    ],
)
def test_a_watchdog_that_is_not_ours_hears_nothing(tmp_path, more, due):
    systemd = Systemd.of({"NOTIFY_SOCKET": str(tmp_path / "notify")} | more)
    assert (systemd.due_in() <= 0) is due
    systemd.close()


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_an_address_that_it_knows_there_is_no_systemd(address):
    assert Systemd.of({"NOTIFY_SOCKET": address}) is None
    assert Systemd.of({}) is None


def test_what_systemd_did_not_hear_is_said_again(tmp_path, clock, caplog):
    address = str(tmp_path / "notify")
    systemd = Systemd(address, 30.0, clock)
    systemd.tell(READY="1")
    systemd.turns()
    assert [record.event for record in caplog.records] == ["systemd-failed"]
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(address)
        listener.setblocking(False)
        systemd.tell(READY="1")
        systemd.turns()
        assert heard(listener) == ["READY=1", "WATCHDOG=1"]
    systemd.close()
