"""How does a command with --json print exactly one JSON document on standard output?"""

import os
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

from unpoison.model.wording import json_text

_kept: list[BinaryIO] = []


def print_json(value: Any) -> None:
    """The document. In UTF-8 whatever the locale says, as JSON is."""
    output = _output()
    output.write(json_text(value).encode() + b"\n")
    output.flush()


def print_json_array(values: Iterable[Any]) -> int:
    """The document is an array, and each element is printed when it comes: all of them may be more than memory holds.

    Returns how many there were.
    """
    output, count = _output(), 0
    for count, value in enumerate(values, 1):
        text = json_text(value).replace("\n", "\n  ")  # line ends within the values are escaped in JSON
        output.write((b"[\n  " if count == 1 else b",\n  ") + text.encode())
    output.write(b"\n]\n" if count else b"[]\n")
    output.flush()
    return count


def flush_all() -> None:
    """Have everything that was printed leave this process. Raises OSError if it cannot."""
    for output in (*_kept, sys.stdout):
        output.flush()


def _output() -> BinaryIO:
    sys.stdout.flush()
    return _kept[0] if _kept else sys.stdout.buffer


def keep_for_json() -> None:
    """From now on whatever is printed, in this process or below it, goes to standard error; the document does not."""
    _kept[:] = [open(os.dup(1), "wb")]  # noqa: SIM115, PTH123 - open to the end of the process
    os.dup2(2, 1)
