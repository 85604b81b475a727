"""How are dead letters given up?"""

from collections.abc import Sequence

import click

from unpoison.cli.dlq.target import said_gone, target, target_options
from unpoison.cli.json_output import print_json
from unpoison.model.wording import counted, one_line


@click.command(
    "discard",
    epilog="\b\nExamples:\n"
    "  unpoison dlq discard orders-12 --app shop:app\n"
    "  unpoison dlq discard orders-12 orders-15 --app shop:app --json",
)
@click.argument("letter_ids", metavar="ID...", nargs=-1, required=True)
@target_options
@click.option("--json", "as_json", is_flag=True, help='Print {"discarded": [ids], "gone": [ids]}.')
def command(letter_ids: Sequence[str], app: str | None, url: str | None, source: str | None, as_json: bool) -> None:
    """Give dead letters up for good. They can still be looked at (ls --state discarded) until the DLQ is purged."""
    discarded: list[str] = []
    gone: list[str] = []
    chosen = target(app, url, source)
    with chosen.one_look():
        for dlq, asked in chosen.find_waiting(letter_ids):
            changed = set(dlq.letters.remove(asked, keep_as="discarded"))
            discarded += [id_ for id_ in asked if id_ in changed]
            gone += [id_ for id_ in asked if id_ not in changed]
    if as_json:
        print_json({"discarded": discarded, "gone": gone})
        return
    if discarded:
        what = one_line(discarded[0]) if len(discarded) == 1 else counted(len(discarded), "dead letter")
        click.echo(f"Discarded {what}.")
    if gone:
        click.echo(said_gone(len(gone)))
