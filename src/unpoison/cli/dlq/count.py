"""How many dead letters are there?"""

import click

from unpoison.cli.dlq.target import NO_SOURCES, target, target_options
from unpoison.cli.json_output import print_json
from unpoison.model.wording import one_line


@click.command(
    "count",
    epilog="\b\nExamples:\n  unpoison dlq count --app shop:app\n  unpoison dlq count --url sqlite:///shop.db --json",
)
@target_options
@click.option("--json", "as_json", is_flag=True, help='Print {"SOURCE": {"dead": N, "replayed": N, "discarded": N}}.')
def command(app: str | None, url: str | None, source: str | None, as_json: bool) -> None:
    """Count dead letters: those that wait, and those replayed or discarded before. Looking changes nothing."""
    counts = {dlq.source: dlq.counts() for dlq in target(app, url, source).dlqs}
    if as_json:
        print_json(counts)
        return
    if not counts:
        click.echo(f"No dead letters: {NO_SOURCES}")
    for name, found in counts.items():
        click.echo(f"{one_line(name)}: " + ", ".join(f"{number:,} {state}" for state, number in found.items()))
