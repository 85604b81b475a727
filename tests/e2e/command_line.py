"""Runs unpoison as a person does: as a process of its own, in a pipe or on a terminal."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from unpoison import App
from unpoison.brokers import broker_for
from unpoison.cli.main import main
from unpoison.model.message import Delivery

UNPOISON = [sys.executable, "-m", "unpoison"]
SHOP = Path(__file__).parents[2] / "examples" / "shop"
LIMIT = 60
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    return kept | {"TERM": "xterm-256color"} | changes


def unpoison(*arguments: str, cwd: Path, stdin: bytes = b"", **variables: str) -> Ended:
    """The command in a pipe."""
    ended = subprocess.run(
        [*UNPOISON, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env=environment(**variables),
        timeout=LIMIT,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr.decode())


def in_this_process(*arguments: str, cwd: Path, **variables: str) -> Ended:
    """The command in a pipe, without a process of its own: much faster. For commands that import no app."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with (
        chdir(cwd),
        patch.dict(os.environ, environment(**variables), clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            main(arguments)
        except SystemExit as ended:
            return Ended(ended.code, out.buffer.getvalue(), err.buffer.getvalue().decode())
    raise AssertionError


def on_terminal(
    *arguments: str,
    cwd: Path,
    answer: str = "",
    columns: int = 100,
    once: tuple[bytes, Callable[[], None]] | None = None,
    **variables: str,
) -> Ended:
    """The command on a terminal of 40 lines, with `answer` typed. What it wrote, to either stream, is in `out`.

    `once` is what to do after the command has written this.
    """
    with terminal(columns) as (master, slave):
        process = subprocess.Popen(
            [*UNPOISON, *arguments],
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(**variables),
            close_fds=True,
        )
        os.close(slave)
        if answer:
            os.write(master, answer.encode())
        written = b""
        while chunk := _read(master):
            written += chunk
            if once is not None and once[0] in written:
                once[1]()
                once = None
        return Ended(process.wait(LIMIT), written, "")


@contextmanager
def terminal(columns: int = 100) -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    try:
        yield master, slave
    finally:
        os.close(master)


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # how Linux says that the last one at the other end has gone
        return b""


def dead_letters(folder: Path, *bodies: bytes, source: str = "orders", error: BaseException | None = None, **sent: Any) -> str:
    """A file in which these became dead letters of a source; returns its URL."""
    url = f"sqlite:///{folder / 'shop.db'}"
    app = App(url)

    @app.consumer(source, isolation="inline", admission=None)
    def fail(_: bytes) -> None:
        raise error or KeyError("piano")

    for body in bodies:
        app.publish(source, body, **sent)
    app.run(until_empty=True)
    app.close()
    return url


def ready(folder: Path, source: str = "orders") -> list[Delivery]:
    """What can be started now."""
    broker = broker_for(f"sqlite:///{folder / 'shop.db'}")
    broker.open([source])
    try:
        return list(broker.fetch(source, 100_000))
    finally:
        broker.close()
