"""How does a command with --json print exactly one JSON document on standard output?"""

import os
import sys
from typing import Any, BinaryIO

from unpoison.cli.escaping import json_text

_kept: list[BinaryIO] = []


def print_json(value: Any) -> None:
    """The document. In UTF-8 whatever the locale says, as JSON is."""
    sys.stdout.flush()
    output = _kept[0] if _kept else sys.stdout.buffer
    output.write(json_text(value).encode() + b"\n")
    output.flush()


def keep_for_json() -> None:
    """From now on whatever is printed, in this process or below it, goes to standard error; the document does not."""
    _kept[:] = [open(os.dup(1), "wb")]  # noqa: SIM115, PTH123 - open to the end of the process
    os.dup2(2, 1)
