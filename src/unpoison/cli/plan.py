"""`unpoison plan`: shows what retries will add to the traffic, and when they will come.

With --simulate it shows what becomes of a source in an outage and the like: `cli/simulate.py`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from unpoison.app_internals import consumers_of
from unpoison.cli.bars import chart_width
from unpoison.cli.input_output import DURATION, Duration, print_json, share
from unpoison.cli.plan_chart import Subject, chart, subject
from unpoison.cli.plan_svg import svg
from unpoison.cli.screen import console
from unpoison.cli.simulate import Asked, Planned, print_simulations, simulations
from unpoison.cli.simulation_svg import svg as simulation_svg
from unpoison.cli.target import load
from unpoison.decide.options import ConsumerOptions
from unpoison.model.backoff import MAX_AGE, MAX_ATTEMPTS, Backoff, Limits
from unpoison.planning import INSTANT, TOGETHER, Load, Percentiles, Plan, Times, Traffic, busiest
from unpoison.simulation.scenario import Kind, Scenario

KINDS = ("exponential", "fixed", "immediate", "delays")


def rate(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter(f"{value:g} is not a rate. Write messages per second, more than 0, such as 1000.", ctx, param)
    return value


def part(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A share that is more than nothing."""
    found = None if value is None else share(ctx, param, value)
    if found == 0:
        raise click.BadParameter(f"{value!r} is nobody. Write a share above 0, such as 30% or 0.001.", ctx, param)
    return found


def durations(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...]:
    """1s,5s,2m"""
    return () if value is None else tuple(DURATION.convert(each, param, ctx) for each in value.split(","))


def attempts_from(attempts: int | None, retries: int | None) -> int:
    if attempts is not None and retries is not None:
        raise click.UsageError("--attempts counts every attempt, --retries those after the first. Give one of them.")
    if retries is not None:
        return retries + 1
    return MAX_ATTEMPTS if attempts is None else attempts


def backoff_from(
    kind: str | None, base: float | None, longest: float | None, delays: tuple[float, ...], jitter: bool | None
) -> Backoff:
    """The Backoff that the options describe. Options that do not belong to its kind are refused, not ignored."""
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
        raise click.UsageError(f"--max {high:g}s is shorter than --base {low:g}s, so no delay fits both. Raise --max.")
    return Backoff.exponential(low, high, jitter=jitter is not False)


FIGURES = ("rate", "failing", "retries", "worst_case", "same_rate", "outage", "schedule", "last_start", "burst")


def document(subject: Subject) -> dict[str, Any]:
    """The entry of one consumer; where nothing limits the attempts its figures are null. Times are seconds."""
    limits = subject.limits
    return {
        "source": subject.source,
        "max_attempts": limits.max_attempts,
        "backoff": msgspec.structs.asdict(limits.backoff),
        **_figures(subject.plan),
        "warnings": [warning._asdict() for warning in subject.warnings],
    }


def _figures(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return dict.fromkeys(FIGURES)
    scenario = plan.scenario
    return {
        "rate": scenario.traffic.rate,
        "failing": scenario.traffic.failing,
        "retries": scenario.retries,
        "worst_case": _load(plan.worst),
        "same_rate": _load(plan.same_rate),
        "outage": {"seconds": scenario.outage, **_load(plan.in_outage)},
        "schedule": [
            {"attempt": step.attempt, "delay": [step.least, step.most], "start": _percentiles(step.start)}
            for step in plan.schedule.steps
        ],
        "last_start": _percentiles(plan.schedule.last),
        "burst": {"messages": TOGETHER, "jitter": _burst(plan.jittered), "no_jitter": _burst(plan.unjittered)},
    }


def _load(load: Load) -> dict[str, float]:
    return {
        "retries_per_second": round(load.retries, 6),
        "amplification": round(load.amplification, 6),
        "dead_per_second": round(load.dead, 6),
    }


def _percentiles(start: Percentiles) -> dict[str, float]:
    return {name: round(value, 3) for name, value in start._asdict().items()}


def _burst(burst: Times) -> dict[str, int]:
    return {"busiest_second": busiest(burst, 1.0), "busiest_100ms": busiest(burst, INSTANT)}


MOST_ATTEMPTS = 100
PICTURE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "plan",
    epilog="\b\nExamples:\n"
    "  unpoison plan --rate 1000 --failing 5% --retries 3\n"
    "  unpoison plan --app shop:app --rate 200 --svg plan.svg\n"
    "  unpoison plan --simulate partial-outage --share 30% --length 10m",
)
@click.option(
    "--rate",
    type=float,
    callback=rate,
    default=1000,
    metavar="N",
    help="Messages per second.  [default: 1000; throttling, partial-outage and --each 100]",
)
@click.option(
    "--failing", callback=share, default="5%", show_default=True, metavar="SHARE", help="Share of messages that fail: 5%, 0.05."
)
@click.option("--attempts", type=click.IntRange(1, MOST_ATTEMPTS), metavar="N", help="Attempts for each message.  [default: 5]")
@click.option(
    "--retries", type=click.IntRange(0, MOST_ATTEMPTS - 1), metavar="N", help="Attempts after the first, in place of --attempts."
)
@click.option("--backoff", type=click.Choice(KINDS), help="How delays grow.  [default: exponential]")
@click.option("--base", type=DURATION, help="The first delay, or the fixed one.  [default: 1s]")
@click.option("--max", "longest", type=DURATION, help="The longest delay.  [default: 60s]")
@click.option("--delays", callback=durations, metavar="TIMES", help="These delays in turn, such as 1s,30s,5m.")
@click.option("--jitter/--no-jitter", default=None, help="Draw each delay between 0 and itself.  [default: if exponential]")
@click.option(
    "--outage",
    type=Duration(above_zero=True),
    default="1m",
    show_default=True,
    help="Length of an outage in which all fail.",
)
@click.option("--app", metavar="MODULE:APP", help="Take attempts and delays from the consumers of this app.")
@click.option("--source", metavar="NAME", help="With --app: this consumer only.")
@click.option(
    "--simulate",
    type=click.Choice([str(kind) for kind in Kind]),
    is_flag=False,
    flag_value="outage",
    help="Run the real state machines against a scenario, with and without them.",
)
@click.option(
    "--length", type=Duration(above_zero=True), help="With --simulate: how long it lasts.  [default: 10m; throttling 5m]"
)
@click.option(
    "--share",
    "part",
    callback=part,
    metavar="SHARE",
    help="With --simulate: of the messages, how many are concerned, or how many a throttling dependency takes.",
)
@click.option(
    "--capacity", type=float, callback=rate, metavar="N", help="With --simulate: messages per second that the workers can handle."
)
@click.option("--unnamed", is_flag=True, help="With --simulate: errors do not tell what they failed on.")
@click.option("--each", is_flag=True, help="With --simulate: leave out each state machine in turn, too.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="The same seed draws the same delays.")
@click.option("--svg", "picture", type=PICTURE, metavar="FILE", help="Also draw the charts into FILE, as SVG.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    rate: float,
    failing: float,
    attempts: int | None,
    retries: int | None,
    backoff: str | None,
    base: float | None,
    longest: float | None,
    delays: tuple[float, ...],
    jitter: bool | None,
    outage: float,
    app: str | None,
    source: str | None,
    seed: int,
    picture: Path | None,
    force: bool,
    as_json: bool,
    **simulation: Any,
) -> None:
    """Show what retries add to the traffic, and when they come.

    Computes, for a rate of messages and a share that fails: retries, dead letters, the effect of an outage, and when each
    attempt starts. With --simulate: what becomes of a source in trouble, with and without breaker, retry budget and admission.
    Nothing is sent or run; --app imports the app to read its settings.
    """
    asked = Asked(**simulation)
    asked.check({f"--{name}": _is_given(ctx, name) for name in ("failing", "outage")})
    planned: Planned
    if app is not None:
        _refuse_with_app(ctx)
        planned = _options_of(app, source)
    elif source is not None:
        raise click.UsageError("--source names a consumer of an app. Give --app module:app too.")
    else:
        planned = {None: Limits(attempts_from(attempts, retries), MAX_AGE, backoff_from(backoff, base, longest, delays, jitter))}
    if asked.simulate is not None:
        scenario = asked.scenario(rate if _is_given(ctx, "rate") else None, seed)
        _simulate(scenario, planned, each=asked.each, picture=picture, force=force, as_json=as_json)
        return
    subjects = [subject(name, _limits(options), Traffic(rate, failing), outage, seed) for name, options in planned.items()]
    if picture is not None:
        _draw(picture, svg(subjects), force=force)
    if as_json:
        print_json({"plans": [document(each) for each in subjects]})
    else:
        _print(subjects)


def _simulate(scenario: Scenario, planned: Planned, *, each: bool, picture: Path | None, force: bool, as_json: bool) -> None:
    if picture is not None and picture.exists() and not force:
        raise _exists(picture)  # before the work, not after it
    shown = simulations(scenario, planned, each=each)
    if picture is not None:
        _draw(picture, simulation_svg(shown), force=force)
    print_simulations(shown, as_json=as_json)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _limits(options: ConsumerOptions | Limits) -> Limits:
    return options.limits if isinstance(options, ConsumerOptions) else options


def _options_of(reference: str, source: str | None) -> Planned:
    """The options of an app's consumers, or of one of them. The app is imported, not run."""
    consumers = consumers_of(load(reference))
    if not consumers:
        raise click.UsageError(f"{reference!r} has no consumer, so there is nothing to plan. Plan with --attempts and --base.")
    if source is not None and source not in consumers:
        known = ", ".join(map(repr, consumers))
        raise click.UsageError(f"{reference!r} has no consumer of {source!r}. Its sources are {known}.")
    return {name: each.options for name, each in consumers.items() if source in (None, name)}


def _refuse_with_app(ctx: click.Context) -> None:
    """An app has settings of its own: an option that would be ignored is refused."""
    own = {"attempts": "--attempts", "retries": "--retries", "backoff": "--backoff", "base": "--base"}
    own |= {"longest": "--max", "delays": "--delays", "jitter": "--jitter or --no-jitter"}
    for name, option in own.items():
        if ctx.params[name] not in (None, ()):
            raise click.UsageError(f"--app takes attempts and delays from the app's consumers. Leave out {option}, or --app.")


def _draw(file: Path, drawing: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(drawing)
    except FileExistsError:
        raise _exists(file) from None
    except OSError as error:
        raise click.ClickException(f"{str(file)!r} cannot be written: {error.strerror}. Name another file for --svg.") from None
    click.echo(f"Drew {file}", err=True)


def _exists(file: Path) -> click.ClickException:
    said = f"{str(file)!r} exists and was not changed. Add --force to overwrite it, or name another file."
    return click.ClickException(said)


def _print(subjects: Sequence[Subject]) -> None:
    screen = console()
    for place, each in enumerate(subjects):
        if place:
            screen.print()
        screen.print(chart(each, chart_width(screen)))
