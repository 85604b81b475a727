"""How long is "10s" or "5m"?"""

import re

import click

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Seconds of a number with its unit: 500ms, 10s, 5m, 2h, 1d. Without a unit they are seconds already."""
    found = _FORM.fullmatch(value.strip().lower())
    if found is None or found[2] not in _UNITS:
        hint = "Write seconds, or a number with ms, s, m, h or d, such as 10s or 5m."
        raise click.BadParameter(f"{value!r} is no duration. {hint}", ctx, param)
    return float(found[1]) * _UNITS[found[2]]
