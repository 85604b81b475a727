"""What will retries do to the traffic, and when do they come? Shown before it happens."""

from collections.abc import Sequence
from pathlib import Path

import click

from unpoison.cli.json_output import print_json
from unpoison.cli.plan.chart import chart, chart_width
from unpoison.cli.plan.document import document
from unpoison.cli.plan.subject import Subject, Weather, subject, subjects_of
from unpoison.cli.plan.svg import svg
from unpoison.cli.plan.values import (
    KINDS,
    attempts_from,
    backoff_from,
    durations,
    optional_duration,
    positive_duration,
    rate,
    share,
)
from unpoison.cli.screen import console
from unpoison.model.backoff import MAX_AGE, Limits
from unpoison.planning.plan import Traffic

MOST_ATTEMPTS = 100
PICTURE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "plan",
    epilog="\b\nExamples:\n"
    "  unpoison plan --rate 1000 --failing 5% --retries 3\n"
    "  unpoison plan --attempts 6 --base 5s --max 10m --outage 5m --svg plan.svg\n"
    "  unpoison plan --app shop:app --rate 200 --json",
)
@click.option("--rate", type=float, callback=rate, default=1000, show_default=True, metavar="N", help="Messages in a second.")
@click.option("--failing", callback=share, default="5%", show_default=True, metavar="SHARE", help="How many fail: 5%, 0.05.")
@click.option("--attempts", type=click.IntRange(1, MOST_ATTEMPTS), metavar="N", help="Starts of a message.  [default: 5]")
@click.option("--retries", type=click.IntRange(0, MOST_ATTEMPTS - 1), metavar="N", help="Starts after the first, in its place.")
@click.option("--backoff", type=click.Choice(KINDS), help="How delays grow.  [default: exponential]")
@click.option("--base", callback=optional_duration, metavar="TIME", help="The first delay, or the fixed one.  [default: 1s]")
@click.option("--max", "longest", callback=optional_duration, metavar="TIME", help="The longest delay.  [default: 60s]")
@click.option("--delays", callback=durations, metavar="TIMES", help="These delays in turn, such as 1s,30s,5m.")
@click.option("--jitter/--no-jitter", default=None, help="Draw each delay between 0 and itself.  [default: if exponential]")
@click.option("--outage", callback=positive_duration, default="1m", show_default=True, metavar="TIME", help="All fail so long.")
@click.option("--app", metavar="MODULE:APP", help="Take attempts and delays from the consumers of this app.")
@click.option("--source", metavar="NAME", help="With --app: this consumer only.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="The same seed draws the same delays.")
@click.option("--svg", "picture", type=PICTURE, metavar="FILE", help="Draw the charts there too, as SVG.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
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
) -> None:
    """Show what retries add to the traffic, and when they come.

    For so many messages in a second, of which a share fails: the retries, the dead letters, what an outage does, and the
    times at which a message starts again. Nothing is sent or run; --app imports the app to read its settings.
    """
    weather = Weather(Traffic(rate, failing), outage, seed)
    if app is not None:
        _refuse_with_app(ctx)
        subjects = subjects_of(app, source, weather)
    elif source is not None:
        raise click.UsageError("--source names a consumer of an app. Give --app module:app too.")
    else:
        limits = Limits(attempts_from(attempts, retries), MAX_AGE, backoff_from(backoff, base, longest, delays, jitter))
        subjects = [subject(None, limits, weather)]
    if picture is not None:
        _draw(picture, subjects, force=force)
    if as_json:
        print_json(document(subjects))
    else:
        _print(subjects)


def _refuse_with_app(ctx: click.Context) -> None:
    """An app has settings of its own, and an option that is passed over in silence misleads."""
    own = {"attempts": "--attempts", "retries": "--retries", "backoff": "--backoff", "base": "--base"}
    own |= {"longest": "--max", "delays": "--delays", "jitter": "--jitter or --no-jitter"}
    for name, option in own.items():
        if ctx.params[name] not in (None, ()):
            raise click.UsageError(f"--app takes attempts and delays from the app's consumers. Leave out {option}, or --app.")


def _draw(file: Path, subjects: Sequence[Subject], *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(svg(subjects))
    except FileExistsError:
        said = f"{str(file)!r} is there already and was left as it is. Add --force, or name another."
        raise click.ClickException(said) from None
    except OSError as error:
        raise click.ClickException(f"{str(file)!r} cannot be written: {error.strerror}. Name another file for --svg.") from None
    click.echo(f"Drew {file}", err=True)


def _print(subjects: Sequence[Subject]) -> None:
    screen = console()
    for place, each in enumerate(subjects):
        if place:
            screen.print()
        screen.print(chart(each, chart_width(screen)))
