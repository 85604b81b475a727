"""When is a killed server gone, so that another one can take its port?"""

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.processes import Process, kill_hard
from unpoison.testing.isolation.diary import wait_until

FIRST_THREAD_ENDS = """
    import ctypes, socket, sys, threading

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=sys.stdin.buffer.raw.read).start()
    ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def started() -> Iterator[subprocess.Popen]:
    """A process whose first thread is a zombie while another one lives, as a killed server is while its disk is busy."""
    command = [sys.executable, "-c", textwrap.dedent(FIRST_THREAD_ENDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_there_until_its_last_thread_has_ended(started):
    port = int(started.stdout.readline())
    process = Process.of(started.pid)
    _wait_for_a_zombie(started.pid)
    assert process.alive
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))

    kill_hard([process])
    assert not process.alive
    socket.create_server(("127.0.0.1", port)).close()


def test_a_zombie_that_nobody_collects_is_gone(started):
    process = Process.of(started.pid)
    process.signal(signal.SIGKILL)
    _wait_for_a_zombie(started.pid)
    kill_hard([process])
    assert not process.alive


def _wait_for_a_zombie(pid: int) -> None:
    status = Path(f"/proc/{pid}/status")
    wait_until(lambda: "State:\tZ" in status.read_text(), status.read_text)
