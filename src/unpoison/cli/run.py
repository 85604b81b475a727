"""How are apps run from the command line?"""

import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict

import click

from unpoison.cli.json_output import keep_for_json, print_json
from unpoison.cli.loading import runnable, whole
from unpoison.cli.progress_line import is_possible, progress_line
from unpoison.flow.run import Run
from unpoison.model.wording import counted, one_line
from unpoison.reporting.log_lines import FORMS, LEVELS, LogStyle, configure, settle
from unpoison.reporting.report import Tally

INTERRUPTED = 128 + signal.SIGINT


@click.command(
    "run",
    epilog="\b\nExamples:\n"
    "  unpoison run shop:app\n"
    "  unpoison run path/to/shop.py:app --log-format json\n"
    "  unpoison run shop:app billing:app --until-empty --fail-on-dead --json",
)
@click.argument("references", metavar="MODULE:APP...", nargs=-1, required=True)
@click.option(
    "--until-empty",
    is_flag=True,
    help="End once nothing is ready, delayed or held by anyone; exit with 1 if a source stays paused.",
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Worker processes for each source.")
@click.option("--fail-on-dead", is_flag=True, help="Exit with 1 if anything became a dead letter in this run.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts at the end as one JSON document.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(FORMS), default="text", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Log errors only; no progress, no counts at the end.")
def command(  # noqa: PLR0917 - click passes them by name
    references: Sequence[str],
    until_empty: bool,
    workers: int | None,
    fail_on_dead: bool,
    as_json: bool,
    log_level: str,
    log_format: str,
    quiet: bool,
) -> None:
    """Consume the sources of apps until SIGTERM or Ctrl-C.

    MODULE:APP is a module that can be imported from the current folder, or a file (path/to/shop.py:app). A first signal
    lets running messages finish and hands the others back; a second one stops at once. Log lines go to standard error.
    Exits with 0 after SIGTERM, with 130 after Ctrl-C.
    """
    if as_json:
        keep_for_json()
    style = LogStyle("error" if quiet else log_level, log_format)
    configure(style)
    apps = [runnable(reference, workers, style) for reference in dict.fromkeys(map(whole, references))]
    if not any(options.isolation != "process" for app in apps for options in app.consumers()):
        settle()  # no app is imported into this process that could set up logging in it
    run = Run(apps, is_dedicated=True)
    shown = until_empty and not quiet and log_format == "text" and is_possible()
    with progress_line(lambda: _counts(_total(run.tallies()))) if shown else nullcontext():
        run.serve(until_empty=until_empty)
    tallies = {name: Tally() for name in run.names()} | run.tallies()
    total = _total(tallies)
    if as_json:
        print_json({"sources": {source: asdict(tally) for source, tally in tallies.items()}, "total": asdict(total)})
    elif not quiet:
        _print_counts(tallies)
        for app in apps:
            if _total(run.tallies(app)).dead:
                click.echo(f"To see the dead letters: unpoison dlq ls --app {one_line(app.reference)}")
    if run.stopped_by == signal.SIGINT:
        sys.exit(INTERRUPTED)
    if fail_on_dead and total.dead:
        became = f"{counted(total.dead, 'message')} became {'a dead letter' if total.dead == 1 else 'dead letters'}"
        click.echo(f"Error: {became}, which --fail-on-dead makes a failure.", err=True)
        sys.exit(1)


def _total(tallies: Mapping[str, Tally]) -> Tally:
    counts = [asdict(tally) for tally in tallies.values()]
    return Tally(**{name: sum(each[name] for each in counts) for name in asdict(Tally())})


def _counts(tally: Tally) -> str:
    return f"{tally.done:,} done, {tally.dead:,} dead, {tally.discarded:,} discarded, {tally.retried:,} retried"


def _print_counts(tallies: Mapping[str, Tally]) -> None:
    width = max(len(one_line(source)) for source in tallies)
    for source, tally in tallies.items():
        click.echo(f"{one_line(source):<{width}}  {_counts(tally)}")
