"""A real FastAPI application under uvicorn, with its consumer beside it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

PATIENCE = 30.0


def until(happens: Callable[[], object]) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


class Served:
    """The application, on a free port."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.effects = folder / "effects"
        self.effects.touch()
        self.url = "http://{}:{}".format(*free_address())
        environment = os.environ | {"JOBS_URL": f"sqlite:///{folder}/jobs.db", "EFFECTS": str(self.effects)} | variables
        port = self.url.rpartition(":")[2]
        command = [sys.executable, "-m", "uvicorn", "web_application:web", "--port", port, "--log-level", "warning"]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parent, env=environment)
        until(self._answers)

    def send(self, name: str) -> None:
        assert httpx.post(f"{self.url}/orders/{name}").status_code == 200
        until(lambda: name in self.effects.read_text())

    def consumer(self) -> int:
        """The pid of the consumer, as the worker that ran the last message saw it."""
        return int(self.effects.read_text().split()[-1])

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/pid").status_code == 200
        except httpx.TransportError:
            return False


def free_address() -> tuple[str, int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    application = Served(tmp_path)
    yield application
    application.process.kill()
    application.process.wait()


def test_messages_run_in_a_process_beside_the_application(served):
    served.send("first")
    _, worker, consumer = served.effects.read_text().split()
    assert int(worker) != int(consumer) != served.process.pid


def test_the_consumer_is_started_again_when_it_dies(served):
    served.send("first")
    before = served.consumer()
    os.kill(before, signal.SIGKILL)
    served.send("second")
    assert served.consumer() != before


def test_the_consumer_ends_with_the_application(served):
    served.send("first")
    consumer = served.consumer()
    served.process.terminate()
    served.process.wait(PATIENCE)
    assert is_gone(consumer)


def test_the_consumer_ends_even_if_the_application_was_killed(served):
    served.send("first")
    consumer = served.consumer()
    served.process.kill()
    until(lambda: is_gone(consumer))


def test_the_consumer_answers_at_its_own_port_and_does_not_speak_to_systemd_for_the_application(tmp_path):
    port, manager = free_address()[1], socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    application = Served(tmp_path, UNPOISON_METRICS_PORT=str(port), NOTIFY_SOCKET=str(tmp_path / "notify"))

    def is_ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(is_ready)
        application.send("first")
        os.kill(application.consumer(), signal.SIGKILL)
        until(lambda: not is_ready())
        until(is_ready)
        application.process.terminate()
        application.process.wait(PATIENCE)
        assert not is_ready()
        with manager, pytest.raises(BlockingIOError):
            manager.recv(4_096)
    finally:
        application.process.kill()
        application.process.wait()
