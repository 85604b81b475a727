"""`unpoison run`: consumes the sources of apps."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import click

from unpoison.app import make_metrics
from unpoison.cli.input_output import keep_for_json, print_json
from unpoison.cli.target import runnable, whole
from unpoison.flow.run import Run
from unpoison.model.wording import counted, one_line
from unpoison.observing.monitoring import Exposed
from unpoison.reporting.log_lines import FORMS, LEVELS, LogStyle, configure, settle
from unpoison.reporting.report import RunResult, Tally

# The progress line. Handlers print from processes of their own, and would tear anything drawn among their lines. So the terminal
# is told to scroll only the lines above the last one: no other output reaches it.


REFRESH = 0.2
SMALLEST = 5

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def is_possible() -> bool:
    """Whether standard error is a terminal that can keep a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and shutil.get_terminal_size().lines >= SMALLEST


@contextmanager
def progress_line(text: Callable[[], str]) -> Iterator[None]:
    """Show `text()` in the last line of the terminal, refreshed until the block ends."""
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(text, ended), name="unpoison-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(text: Callable[[], str], ended: threading.Event) -> None:
    size = None
    while not ended.wait(REFRESH):
        if size != (size := shutil.get_terminal_size()):
            # The line end makes room if the cursor is in the last line. Setting the area moves the cursor, so it is put back.
            _write(f"\n{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}\x1b[1A")
        _write(f"{_SAVE}\x1b[{size.lines};1H\x1b[2K{_DIM}{text()[: size.columns]}{_PLAIN}{_RESTORE}")
    if size is not None:
        _write(f"{_SAVE}\x1b[r{_RESTORE}\x1b[J")


def _write(text: str) -> None:
    """In one call, so that no other process writes between saving and restoring the cursor."""
    os.write(sys.stderr.fileno(), text.encode())


INTERRUPTED = 128 + signal.SIGINT


@click.command(
    "run",
    epilog="\b\nExamples:\n"
    "  unpoison run shop:app\n"
    "  unpoison run path/to/shop.py:app --log-format json --metrics-port 9464\n"
    "  unpoison run shop:app billing:app --until-empty --fail-on-dead --json",
)
@click.argument("references", metavar="MODULE:APP...", nargs=-1, required=True)
@click.option(
    "--until-empty",
    is_flag=True,
    help="End once no message is ready, delayed or held by a consumer; exit with 1 if a source stays paused.",
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Worker processes for each source.")
@click.option("--fail-on-dead", is_flag=True, help="Exit with 1 if anything became a dead letter in this run.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="P",
    help="Answer /metrics, /healthz and /readyz there; 0: any port.",
)
@click.option("--metrics-host", metavar="H", help="The address for that; 0.0.0.0: all.  [default: 127.0.0.1]")
@click.option("--heartbeat-file", metavar="PATH", help="Renew the time of this file while all consumers turn.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts at the end as one JSON document.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(FORMS), default="text", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Log errors only; no progress, no counts at the end.")
def command(  # noqa: PLR0917 - click passes them by name
    references: Sequence[str],
    until_empty: bool,
    workers: int | None,
    fail_on_dead: bool,
    metrics_port: int | None,
    metrics_host: str | None,
    heartbeat_file: str | None,
    as_json: bool,
    log_level: str,
    log_format: str,
    quiet: bool,
) -> None:
    """Consume the sources of apps until SIGTERM or Ctrl-C.

    MODULE:APP is a module that can be imported from the current folder, or a file (path/to/shop.py:app). A first signal
    lets running messages finish and returns the others to the source; a second one stops at once. Log lines go to standard error.
    Exits with 0 after SIGTERM, with 130 after Ctrl-C.
    """
    if as_json:
        keep_for_json()
    style = LogStyle("error" if quiet else log_level, log_format)
    configure(style)
    apps = [runnable(reference, workers, style) for reference in dict.fromkeys(map(whole, references))]
    if not any(options.isolation != "process" for app in apps for options in app.consumers()):
        settle()  # no app is imported into this process, so none can set up logging here
    exposed = Exposed(metrics_port, metrics_host, heartbeat_file)
    run = Run(apps, is_dedicated=True, exposed=exposed, make_metrics=make_metrics)
    shown = until_empty and not quiet and log_format == "text" and is_possible()
    with progress_line(lambda: _counts(run.result().total)) if shown else nullcontext():
        run.serve(until_empty=until_empty)
    result = run.result()
    total = result.total
    if as_json:
        print_json({"sources": {source: asdict(tally) for source, tally in result.sources.items()}, "total": asdict(total)})
    elif not quiet:
        _print_counts(result.sources)
        for app in apps:
            if RunResult(run.tallies(app)).total.dead:
                click.echo(f"To see the dead letters: unpoison dlq ls --app {one_line(app.reference)}")
    if run.stopped_by == signal.SIGINT:
        sys.exit(INTERRUPTED)
    if fail_on_dead and total.dead:
        became = f"{counted(total.dead, 'message')} became {'a dead letter' if total.dead == 1 else 'dead letters'}"
        click.echo(f"Error: {became}, and --fail-on-dead is set.", err=True)
        sys.exit(1)


def _counts(tally: Tally) -> str:
    return f"{tally.done:,} done, {tally.dead:,} dead, {tally.discarded:,} discarded, {tally.retried:,} retried"


def _print_counts(tallies: Mapping[str, Tally]) -> None:
    width = max(len(one_line(source)) for source in tallies)
    for source, tally in tallies.items():
        click.echo(f"{one_line(source):<{width}}  {_counts(tally)}")
