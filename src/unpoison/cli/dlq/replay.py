"""How are dead letters sent again?"""

from collections.abc import Sequence

import click

from unpoison.cli.confirming import confirm
from unpoison.cli.dlq.long_work import long_work
from unpoison.cli.dlq.target import Target, said_gone, target, target_options
from unpoison.cli.json_output import print_json
from unpoison.deadletters.manager import ReplayResult
from unpoison.model.wording import counted, one_line


@click.command(
    "replay",
    epilog="\b\nExamples:\n"
    "  unpoison dlq replay orders-12 orders-15 --app shop:app\n"
    "  unpoison dlq replay --all --app shop:app --source orders\n"
    "  unpoison dlq replay --all --yes --url sqlite:///shop.db --source orders",
)
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@target_options
@click.option("--all", "everything", is_flag=True, help="Every letter that waits in the source now.")
@click.option("--yes", is_flag=True, help="Do not ask before --all. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help='Print {"replayed": [ids], "gone": [ids]}.')
def command(
    letter_ids: Sequence[str], app: str | None, url: str | None, source: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """Send dead letters to their source again, with their attempts counted from the start.

    Works on the set that waits now: what fails again becomes a new dead letter and is not sent twice.
    """
    if bool(letter_ids) == everything:
        raise click.UsageError("Which letters? Give their ids, or --all.")
    chosen = target(app, url, source)
    result = _replay_all(chosen, yes) if everything else _replay(chosen, letter_ids)
    if as_json:
        print_json({"replayed": result.replayed, "gone": result.gone})
    else:
        click.echo(_told(result))


def _replay(chosen: Target, letter_ids: Sequence[str]) -> ReplayResult:
    sent: list[str] = []
    gone: list[str] = []
    with chosen.one_look():
        for dlq, asked in chosen.find_waiting(letter_ids):
            replayed = set(dlq.letters.replay(asked))
            sent += [id_ for id_ in asked if id_ in replayed]
            gone += [id_ for id_ in asked if id_ not in replayed]
    return ReplayResult(tuple(sent), tuple(gone))


def _replay_all(chosen: Target, yes: bool) -> ReplayResult:
    dlq = chosen.one()
    waiting = dlq.manager.count()
    if waiting:
        confirm(f"Send {counted(waiting, 'dead letter')} to {dlq.source!r} again?", yes=yes)
    with long_work("replayed", dlq.source) as advance:
        return dlq.manager.replay_all(advance)


def _told(result: ReplayResult) -> str:
    if not result.replayed and not result.gone:
        return "No dead letters wait there; nothing was sent."
    text = (
        f"Replayed {one_line(result.replayed[0])}." if result.count == 1 else f"Replayed {counted(result.count, 'dead letter')}."
    )
    if result.gone:
        text += f" {said_gone(len(result.gone))}"
    return text
