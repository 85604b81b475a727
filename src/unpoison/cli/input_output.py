"""What several commands share: durations, shares, confirmations and JSON output."""

import math
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

import click

from unpoison.model.wording import json_text

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", re.ASCII)
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A number with a unit, as seconds: 500ms, 10s, 5m, 2h, 1d. Without a unit it is seconds."""

    name = "time"

    def __init__(self, *, above_zero: bool = False) -> None:
        self._above_zero = above_zero

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _FORM.fullmatch(value.strip().lower())
        if found is None or found[2] not in _UNITS:
            hint = "Write seconds, or a number with ms, s, m, h or d, such as 10s or 5m."
            self.fail(f"{value!r} is not a duration. {hint}", param, ctx)
        seconds = float(found[1]) * _UNITS[found[2]]
        if self._above_zero and not seconds:
            self.fail(f"{value!r} is too short: it must be more than 0. Write a duration such as 30s or 5m.", param, ctx)
        return seconds


DURATION = Duration()


def share(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """5% and 0.05 are the same. 5 alone is refused: it may be meant as either."""
    found = _SHARE.fullmatch(value.strip())
    part = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not 0 <= part <= 1:
        raise click.BadParameter(f"{value!r} is not a share of the traffic. Write 5% or 0.05, up to 100% or 1.", ctx, param)
    return part


def confirm(question: str, *, yes: bool, typed: str | None = None) -> None:
    """Return only after a yes, or after `typed` was typed. Without a terminal it refuses: scripts add --yes."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.ClickException(f"{question} There is no terminal to ask on: add --yes to confirm.")
    if typed is None:
        agreed = click.confirm(question, err=True)
    else:
        agreed = click.prompt(f"{question} Type {typed!r} to confirm", default="", show_default=False, err=True) == typed
    if not agreed:
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)


# With --json one JSON document, and nothing else, goes to standard output.


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
