"""How are dead letters deleted?"""

import click

from unpoison.cli.confirming import confirm
from unpoison.cli.dlq.long_work import long_work
from unpoison.cli.dlq.target import target, target_options
from unpoison.cli.json_output import print_json
from unpoison.model.wording import counted


@click.command(
    "purge",
    epilog="\b\nExamples:\n"
    "  unpoison dlq purge --app shop:app --source orders\n"
    "  unpoison dlq purge --yes --url sqlite:///shop.db --source orders --json",
)
@target_options
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"purged": N, "history": N}.')
def command(app: str | None, url: str | None, source: str | None, yes: bool, as_json: bool) -> None:
    """Delete all dead letters of a source for good: those that wait, and those replayed or discarded before.

    They cannot be brought back. To keep a copy first: unpoison dlq ls --state all --json > letters.json
    """
    dlq = target(app, url, source).one()
    if not yes:
        counts = dlq.counts()
        waiting, past = counts["dead"], counts["replayed"] + counts["discarded"]
        question = (
            f"Delete {counted(waiting, 'dead letter')} of {dlq.source!r}, and {past:,} replayed or discarded before, for good?"
        )
        if waiting or past:
            confirm(question, yes=yes, typed=dlq.source)
    with long_work("purged", dlq.source) as advance:
        result = dlq.manager.purge(advance)
    if as_json:
        print_json({"purged": result.purged, "history": result.history})
    else:
        click.echo(f"Deleted {counted(result.purged, 'dead letter')}, and {result.history:,} replayed or discarded before.")
