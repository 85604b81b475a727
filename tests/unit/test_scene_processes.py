"""Which process of a scene is which?"""

import os
import subprocess
import sys

import pytest

from unpoison.testing.isolation import processes


def test_the_template_is_the_oldest_even_if_process_ids_began_again_at_the_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "-c", "print('up', flush=True); input()", "unpoison.programs.template"]
    with _started(program) as older, _started(program) as younger:
        monkeypatch.setattr(processes, "_pids", lambda: iter([younger.pid, older.pid]))
        assert processes.template_of(os.getpid()) == older.pid
        older.communicate(b"\n")
        younger.communicate(b"\n")
    assert processes.template_of(os.getpid()) == 0


def _started(program: list[str]) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process
