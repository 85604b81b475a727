"""How is a process killed at every step of its work, without a hook in the code and without guessing times?

The work runs in a forked child under a tracer that counts the lines it comes by in chosen modules. One run that is not
killed tells how many there are; then the child is run again and again and sends itself SIGKILL at one of them.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

from unpoison.testing.lab import Lab
from unpoison.testing.processes import Child

FLOW = (
    "unpoison.flow.consumer",
    "unpoison.workers.in_process",
    "unpoison.flow.settling",
    "unpoison.flow.suspects",
    "unpoison.deadletters",
    "unpoison.store.letters.claims",
    "unpoison.store.letters.collected",
    "unpoison.store.letters.collector",
    "unpoison.store.letters.turns",
    "unpoison.store.letters.writing",
)
"""The modules whose lines are kill points on every broker. A thread that the work starts is watched once it comes by one."""

EVERY_KILL = "EVERY_KILL"
FEW, STRIDE, LATER = 100, 3, 64
"""Work of few steps is killed at each of them; longer work at every third line and every 64th step, unless all are asked for."""

Work = Callable[[str], object]
Line = tuple[str, int]
OnLine = Callable[[Line], None]


def sweep(lab: Lab, name: str, prepare: Work, work: Work, check: Work) -> None:
    """Prepare a source, have the work on it killed at some line, check what is left; line after line, each in a new source."""
    rehearsal = f"{name}-rehearsal"
    prepare(rehearsal)
    lines = recorded(lambda: work(rehearsal), lab)
    check(rehearsal)
    kills = 0
    part, parts = lab.kill_part
    steps = _chosen(lines)[part::parts]
    for step in steps:
        lab.close()  # or connections pile up, and each child inherits them
        source = f"{name}-killed-at-{step}"
        prepare(source)
        file, line = lines[step]
        passed_before = lines[:step].count(lines[step])
        kills += killed(lambda: work(source), lab, lines[step], passed_before)  # noqa: B023 - called before the next one is begun
        try:
            check(source)
        except AssertionError as error:
            raise AssertionError(f"Killed before line {line} of {file} (step {step} of {len(lines)}): {error}") from error
    assert kills > 0.9 * len(steps), f"Of {len(steps)} kills only {kills} hit: the work does not go the same way each time."


def _chosen(lines: Sequence[Line]) -> list[int]:
    """Of many steps, every third line the first time it is passed and some later ones; else, or if that is asked for, all."""
    if os.environ.get(EVERY_KILL) or len(lines) <= FEW:
        return list(range(len(lines)))
    first = {line: step for step, line in reversed(list(enumerate(lines)))}
    return sorted({*sorted(first.values())[::STRIDE], *range(0, len(lines), LATER)})


def recorded(work: Callable[[], object], lab: Lab) -> list[Line]:
    """Do the work in a child, unkilled; returns the lines it came by."""
    told = lab.folder / "lines"

    def record() -> None:
        lines: list[Line] = []
        _traced(work, lab.modules, lines.append)
        told.write_text("\n".join(f"{line}:{file}" for file, line in lines))

    with Child(record) as child:
        if child.wait() != 0:
            raise AssertionError("The work fails even if it is not killed; its traceback is on standard error.")
    places = [text.partition(":") for text in told.read_text().splitlines()]
    return [(file, int(line)) for line, _, file in places]


def killed(work: Callable[[], object], lab: Lab, where: Line, passed_before: int) -> bool:
    """Do the work in a child that kills itself before this line. False if it had ended before it came there.

    Not before the same number of steps: how often the work goes round its loop while it waits depends on the machine's speed.
    """

    def die_in_time() -> None:
        left = passed_before

        def count(line: Line) -> None:
            nonlocal left
            if line != where:
                return
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        _traced(work, lab.modules, count)

    with Child(die_in_time) as child:
        code = child.wait()
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"The child ended with {code}; its traceback is on standard error.")
    return code != 0


def _traced(work: Callable[[], object], modules: Sequence[str], on_line: OnLine) -> None:
    """In a child, which lives for a moment."""
    gc.disable()  # Python 3.13.0 was seen to crash when it collects while threads are traced
    flow = {_file(module) for module in FLOW}
    watched = flow | {_file(module) for module in modules}
    entered = threading.local()
    entered.yes = True

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        """Watch a call if it is in one of the modules, and in a thread of the flow: an adapter's own threads run as they like."""
        file = frame.f_code.co_filename
        if file in flow:
            entered.yes = True
        return step if file in watched and getattr(entered, "yes", False) else None

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            on_line((frame.f_code.co_filename, frame.f_lineno))
        return step

    threading.settrace(enter)
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(None)


def _file(module: str) -> str:
    file = import_module(module).__file__
    if file is None:
        raise ValueError(f"{module!r} is not a module with a file, so it has no lines to kill at.")
    return file
