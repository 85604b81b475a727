"""What does the text of a traceback say: which frames, raised from what, with which exceptions inside?

The text and not the exception is read, since it is all that is left of a failure in a stored letter. It may be cut anywhere, and
anyone may have written it.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from unpoison.model.failure import cap

LIMIT = 20_000
"""Characters that are read: more than `failure.TRACEBACK_LIMIT`, so that what was cut there is not cut again."""

_FRAME = re.compile(r'\s+File "([^\n"]+)", line \d+, in (\S.*)')
_STACK_FRAME = re.compile(r'\s+File "([^\n"]+)", line \d+ in (\S.*)')
_REPEATED = re.compile(r"\s+\[Previous line repeated \d+ more times?\]")
_IN_GROUP = re.compile(r"( +)(?:\| ?|\+ )")
_PART = re.compile(r"( +)\+-(\+?)-* (?:\d+|\.\.\.) -+$")
_MORE = re.compile(r" +\| and \d+ more exceptions?$")
_CUT = re.compile(r"^[^\n]*+\n… \d+ characters left out …\n[^\n]*+", re.MULTILINE)
"""What `failure.cap` writes, with what it leaves of the lines before and after."""
_INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
"""Frames of their own up to Python 3.11 only."""

MORE = "and more exceptions"
"""Stands for those of a large group that Python does not show."""
CAUSED = "The above exception was the direct cause of the following exception:"
MEANWHILE = "During handling of the above exception, another exception occurred:"
_BEGIN = ("Traceback (most recent call last):", "Exception Group Traceback (most recent call last):")


class Frame(NamedTuple):
    file: str
    name: str


@dataclass(slots=True)
class Raised:
    """One exception of a traceback. `line` ends it: type and text as far as its first line."""

    frames: list[Frame] = field(default_factory=list)
    line: str = ""
    cause: "Raised | None" = None
    parts: "list[Raised]" = field(default_factory=list)


def read(text: str) -> Raised:
    """The last exception of the text, which was raised last. Never raises."""
    return _Reader("Exception Group" in text).read(bounded(text))


def read_stack(text: str) -> list[Frame]:
    """The frames that faulthandler wrote, innermost first: of the thread that crashed, or else of the first one it names."""
    threads: list[list[Frame]] = []
    crashed: list[Frame] | None = None
    for line in bounded(text).splitlines():
        if found := _STACK_FRAME.match(line):
            (threads or (threads := [[]]))[-1].append(_frame(found))
        elif line.endswith("(most recent call first):") and "C stack" not in line:
            threads.append([])
            crashed = threads[-1] if line.startswith("Current thread") else crashed
    return crashed or next(filter(None, threads), [])


def bounded(text: str) -> str:
    """Both ends of a long text, in whole lines."""
    return _CUT.sub("", cap(text, LIMIT))


class _Reader:
    """Reads line by line; each line is looked at once. `open` has the exception that is being read at each depth of groups."""

    def __init__(self, has_groups: bool) -> None:
        self._has_groups = has_groups
        self._open = [Raised()]
        self._last = ""

    def read(self, text: str) -> Raised:
        for line in text.splitlines():
            if self._has_groups and _MORE.match(line):
                self._open[-1].line = self._open[-1].line or MORE
            elif self._has_groups and (found := _PART.match(line)):
                self._begin_part(len(found[1]) // 2 + len(found[2]) - 1)
            elif self._has_groups and (found := _IN_GROUP.match(line)):
                self._feed(line[found.end() :], min(len(found[1]) // 2 - 1, len(self._open) - 1))
            elif line:
                self._feed(line, 0)
        return self._open[0]

    def _begin_part(self, depth: int) -> None:
        depth = max(1, min(depth, len(self._open)))
        part = Raised()
        self._open[depth - 1].parts.append(part)
        self._open[depth:] = [part]

    def _feed(self, line: str, depth: int) -> None:
        depth = max(0, depth)
        one = self._open[depth]
        if line in (CAUSED, MEANWHILE):
            self._follow(depth, one if line == CAUSED else None)
        elif one.line:
            return  # more lines of its text, and its notes
        elif found := _FRAME.match(line):
            if (frame := _frame(found)).name not in _INLINED:
                one.frames.append(frame)
        elif _REPEATED.match(line):
            one.frames += one.frames[-1:]
        elif not line.startswith((" ", "\t", *_BEGIN)):
            if one.frames or depth:
                one.line = line
            self._last = line

    def _follow(self, depth: int, cause: Raised | None) -> None:
        """What comes now was raised after what was read so far, and stands in its place."""
        if cause and not cause.line:
            cause.line = self._last  # it was never raised itself, and has no frames
        last = Raised(cause=cause)
        if depth:
            self._open[depth - 1].parts[-1] = last
        self._open[depth:] = [last]


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found[1][-300:], found[2].strip().rpartition(".")[2][:200])
