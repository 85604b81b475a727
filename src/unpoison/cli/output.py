"""Prints one JSON document, and nothing else, on standard output for commands with --json."""

import os
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

from unpoison.model.wording import json_text

_kept: list[BinaryIO] = []


def print_json(value: Any) -> None:
    """Print the document, in UTF-8 whatever the locale says."""
    output = _output()
    output.write(json_text(value).encode() + b"\n")
    output.flush()


def print_json_array(values: Iterable[Any]) -> int:
    """Print an array element by element, since all of them may be more than memory holds. Returns how many there were."""
    output, count = _output(), 0
    for count, value in enumerate(values, 1):
        text = json_text(value).replace("\n", "\n  ")  # line ends within the values are escaped in JSON
        output.write((b"[\n  " if count == 1 else b",\n  ") + text.encode())
    output.write(b"\n]\n" if count else b"[]\n")
    output.flush()
    return count


def flush_all() -> None:
    """Write out everything that was printed. Raises OSError if that fails."""
    for output in (*_kept, sys.stdout):
        output.flush()


def _output() -> BinaryIO:
    sys.stdout.flush()
    return _kept[0] if _kept else sys.stdout.buffer


def keep_for_json() -> None:
    """Keep standard output for the document: all other output, of child processes too, goes to standard error from now on."""
    _kept[:] = [open(os.dup(1), "wb")]  # noqa: SIM115, PTH123 - open to the end of the process
    os.dup2(2, 1)
