"""What do the values given to `unpoison plan` mean?"""

import math
import re

import click

from unpoison.cli.durations import duration
from unpoison.model.backoff import MAX_ATTEMPTS, Backoff

KINDS = ("exponential", "fixed", "immediate", "delays")

_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", re.ASCII)


def rate(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{value:g} is no rate. Write messages in a second, more than 0, such as 1000.", ctx, param)
    return value


def share(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """5% and 0.05 are the same. 5 alone is refused: it may be meant as either."""
    found = _SHARE.fullmatch(value.strip())
    part = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not 0 <= part <= 1:
        raise click.BadParameter(f"{value!r} is no share of the traffic. Write 5% or 0.05, up to 100% or 1.", ctx, param)
    return part


def positive_duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    seconds = duration(ctx, param, value)
    if not seconds:
        raise click.BadParameter(f"{value!r} is no time at all. Write a duration such as 30s or 5m.", ctx, param)
    return seconds


def optional_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else duration(ctx, param, value)


def durations(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...]:
    """1s,5s,2m"""
    return () if value is None else tuple(duration(ctx, param, each) for each in value.split(","))


def attempts_from(attempts: int | None, retries: int | None) -> int:
    """A message with 3 retries is started 4 times."""
    if attempts is not None and retries is not None:
        raise click.UsageError("--attempts counts every start, --retries those after the first. Give one of them.")
    if retries is not None:
        return retries + 1
    return MAX_ATTEMPTS if attempts is None else attempts


def backoff_from(
    kind: str | None, base: float | None, longest: float | None, delays: tuple[float, ...], jitter: bool | None
) -> Backoff:
    """The Backoff that the options describe. What does not belong to its kind is refused, not ignored."""
    kind = kind or ("delays" if delays else "exponential")
    taken = {"exponential": {"--base", "--max"}, "fixed": {"--base"}, "immediate": set(), "delays": {"--delays"}}[kind]
    given = {"--base": base is not None, "--max": longest is not None, "--delays": bool(delays)}
    stray = [option for option, is_given in given.items() if is_given and option not in taken]
    if stray:
        raise click.UsageError(f"--backoff {kind} has no {stray[0]}. Leave it out, or choose another --backoff.")
    if kind == "immediate":
        if jitter:
            raise click.UsageError("--backoff immediate has no delay that --jitter could spread. Leave one of them out.")
        return Backoff.immediate()
    if kind == "delays":
        if not delays:
            raise click.UsageError("--backoff delays needs the delays. Add them, for example --delays 1s,5s,30s")
        return Backoff.list(delays, jitter=bool(jitter))
    if kind == "fixed":
        return Backoff.fixed(1 if base is None else base, jitter=bool(jitter))
    low, high = 1 if base is None else base, 60 if longest is None else longest
    if high < low:
        raise click.UsageError(f"--max {high:g}s is shorter than --base {low:g}s, so no delay could be both. Raise --max.")
    return Backoff.exponential(low, high, jitter=jitter is not False)
