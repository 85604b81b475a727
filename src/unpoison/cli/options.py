"""What several commands ask of the person: a target, a duration, a yes."""

import os
import re
import sys

import click

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A number with a unit, as seconds: 500ms, 10s, 5m, 2h, 1d. Without a unit it is seconds."""
    found = _FORM.fullmatch(value.strip().lower())
    if found is None or found[2] not in _UNITS:
        hint = "Write seconds, or a number with ms, s, m, h or d, such as 10s or 5m."
        raise click.BadParameter(f"{value!r} is not a duration. {hint}", ctx, param)
    return float(found[1]) * _UNITS[found[2]]


def target_or_url(target: str | None, usage: str) -> str:
    """The argument, or UNPOISON_URL where it was left out. `usage` says what the command needs."""
    found = target or os.environ.get("UNPOISON_URL")
    if not found:
        raise click.UsageError(f"{usage}, or set UNPOISON_URL.")
    return found


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
