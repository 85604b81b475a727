"""`unpoison run` as a process of its own: its log, and what it answers over HTTP."""

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

from tests.e2e.command_line import LIMIT, UNPOISON, environment
from unpoison.testing.isolation.diary import wait_until

REFUSED = 0


class ConsumerProcess:
    """Runs until the block ends. It logs JSON lines, and where it listens."""

    def __init__(self, *arguments: str, cwd: Path, program: Sequence[str] = UNPOISON, **variables: str) -> None:
        command = [*program, "run", *arguments, "--log-format", "json"]
        self.process = subprocess.Popen(
            command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(**variables), text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.lines.extend(lines)

    def logged(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [each for each in found if each.get("event") == event]

    def wait_for(self, event: str) -> dict[str, Any]:
        wait_until(lambda: self.logged(event), lambda: f"Nothing about {event!r} in {''.join(self.lines)}", LIMIT)
        return self.logged(event)[0]

    @property
    def port(self) -> int:
        return int(self.wait_for("listen")["port"])

    def ask(self, path: str) -> tuple[int, Any]:
        """Status and JSON. Status 0 if nobody listens."""
        try:
            with closing(HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, json.loads(response.read())
        except ConnectionError:
            return REFUSED, None

    def ready(self, status: int, state: str = "running", source: int = 0) -> dict[str, Any]:
        """Wait until /readyz says so; what it says of the source. /healthz must say all the time that nothing hangs."""
        said: list[Any] = []

        def is_so() -> bool:
            assert self.process.poll() is None, "".join(self.lines)
            assert self.ask("/healthz")[0] == 200
            said[:] = self.ask("/readyz")
            return bool(said[0] == status and said[1]["sources"][source]["state"] == state)

        wait_until(is_so, lambda: f"/readyz is not {status}, {state}, but {said}", LIMIT)
        return dict(said[1]["sources"][source])

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return self.process.wait(LIMIT)


def below(pid: int, program: str = "") -> list[int]:
    """The processes whose parent this is, and whose command has this in it."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if program in Path(f"/proc/{child}/cmdline").read_bytes().decode()]


def environment_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes()
    return dict(os.fsdecode(each).split("=", 1) for each in text.split(b"\0") if b"=" in each)
