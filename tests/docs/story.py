"""How is a page tried? Its blocks are run in their order, in one folder, as a reader would who follows it from the top."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.ports import free_port
from tests.docs.pages import KNOWN, SHOWN_ONLY, Block, Command, commands

LIMIT = 100
ENDED_BY_CTRL_C = 130
ANYTHING = "…"
CTRL_C = "^C"
PORT = "8099"
"""The port of a service that a page starts. A free one stands for it: other runs may share the machine."""

STAND_INS = Path(__file__).parent / "stand_ins"
"""Programs that pages use and a machine may not have; they come last, so that the real one is used where it is."""

NOT_RUN = {
    r"pip install ": "takes packages from the index; tests/e2e/test_wheel.py runs it on the wheel from a folder",
    r"make test\b": "would run itself",
    r"sudo ": "changes the machine",
}
"""The commands that a test machine cannot run, each with the reason."""


class Differs(AssertionError):
    """What a page shows is not what happens."""


def why_not(command: str) -> str | None:
    """The reason for which a command is not run."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


class Story:
    """One page, in one folder. At its end, what it has started in the background is ended."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page, self.folder = page, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("UNPOISON_", "PYTEST_", "COV_"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", ""), str(STAND_INS)])
        self._environment = kept | {"PATH": path, "COLUMNS": "100", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
        self._background: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._background:
            os.killpg(process.pid, signal.SIGKILL)  # it has not been waited for, so its number is still its own
            process.wait()

    @cached_property
    def _port(self) -> str:
        return str(free_port(set()))

    def tell(self, block: Block) -> None:
        """Do what the block says, and compare."""
        if any(PORT in line for line in block.lines):
            block = replace(block, lines=[line.replace(PORT, self._port) for line in block.lines])
        where = f"{self.page}:{block.line}"
        if block.language not in KNOWN:
            raise Differs(f"{where}: a block of {block.language or 'no language'!r}. Name one of {', '.join(KNOWN)}.")
        if block.language in SHOWN_ONLY:
            self._save(block)
        elif block.language == "python":
            self._program(block)
        else:
            for command in commands(block):
                self._command(command)

    def _save(self, block: Block, name: str | None = None) -> str | None:
        name = block.file or name
        if name:
            (self.folder / name).write_text(block.text)
        return name

    def _program(self, block: Block) -> None:
        name = self._save(block, "shop.py")
        python = f"python -W error {name}" if block.file is None else f"python -c 'import runpy; runpy.run_path(\"{name}\")'"
        self._command(Command(block.line, python, [ANYTHING]))

    def _command(self, command: Command) -> None:
        if why_not(command.text):
            return
        text = command.text
        if text.endswith("&"):
            self._start(text.removesuffix("&"))
            return
        where, shown = f"{self.page}:{command.line}: {text}", list(command.shown)
        serves = re.match(r"unpoison run (?!.*--(until-empty|help))", text)
        if serves and CTRL_C not in shown:
            shown = [*(shown or [ANYTHING, f"{ANYTHING} Consuming {ANYTHING}"]), CTRL_C, ANYTHING]
        code, lines = self._run(text, shown)
        wanted = ENDED_BY_CTRL_C if CTRL_C in shown and text.startswith(("unpoison ", "tail ")) else command.exit_code
        if code != wanted:
            raise Differs(f"{where}\nended with {code}, not {wanted}, and wrote:\n" + "\n".join(lines))
        difference = compare([line for line in shown if line != CTRL_C], lines)
        if difference:
            raise Differs(f"{where}\n{difference}")

    def _start(self, text: str) -> None:
        """In the background, as "&" says."""
        quiet = subprocess.DEVNULL
        self._background.append(
            subprocess.Popen(
                ["bash", "-c", text],
                cwd=self.folder,
                env=self._environment,
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                start_new_session=True,
            )
        )

    def _run(self, text: str, shown: Sequence[str]) -> tuple[int, list[str]]:
        """Runs until it ends; where Ctrl-C is shown, until it has written what is shown before that."""
        awaited = shown[: shown.index(CTRL_C)] if CTRL_C in shown else None
        lines: list[str] = []
        with subprocess.Popen(
            ["bash", "-c", text],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            overdue = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
            overdue.start()
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                if awaited is not None and not compare([*awaited, ANYTHING], lines):
                    os.killpg(process.pid, signal.SIGINT)
                    awaited = None
            process.wait()
            overdue.cancel()
        code = process.returncode
        return (code if code >= 0 else 128 - code), lines  # as a shell says that a signal has ended it


def compare(shown: Sequence[str], lines: Sequence[str]) -> str:
    """What differs, or nothing. Their order may differ: several processes write to one screen.

    Where nothing is shown nothing is compared. A line of "…" alone stands for any lines; without one, every line that was
    written has to be shown.
    """
    wanted = [line for line in shown if line.strip() and line.strip() != ANYTHING]
    left = [line for line in lines if line.strip()]
    if not shown:
        return ""
    wrote = "It wrote:\n" + "\n".join(lines)
    for line in wanted:
        found = next((one for one in left if _pattern(line).fullmatch(_squeezed(one))), None)
        if found is None:
            return f"shows a line that was not written: {line!r}\n{wrote}"
        left.remove(found)
    if left and ANYTHING not in [line.strip() for line in shown]:
        return f"does not show this line: {left[0]!r}\n{wrote}"
    return ""


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in _squeezed(line).split(ANYTHING)))


def _squeezed(line: str) -> str:
    return re.sub(r"\s+", " ", line.strip())
