"""How does a command with --json print exactly one JSON document on standard output?"""

import os
import sys
from typing import Any

from bezoar.cli.escaping import json_text


def print_json(value: Any) -> None:
    """The document. In UTF-8 whatever the locale says, as JSON is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(json_text(value).encode() + b"\n")
    sys.stdout.buffer.flush()


def keep_for_json() -> None:
    """From now on what handlers print, in this process or below it, goes to standard error; the document does not."""
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(kept, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open to the end of the process
