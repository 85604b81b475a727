"""`unpoison leave`: moves waiting messages back to their Kafka topic, for people who stop using unpoison."""

from collections.abc import Sequence

import click
import msgspec

from unpoison.app import consumers_of
from unpoison.brokers import is_url, leftovers_for, move_back
from unpoison.cli.loading import load
from unpoison.cli.options import confirm, target_or_url
from unpoison.cli.output import print_json
from unpoison.cli.screen import progress
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Leftovers
from unpoison.port.broker_url import masked


@click.command(
    "leave",
    epilog="\b\nExamples:\n  unpoison leave shop:app\n  unpoison leave 'kafka://kafka-1:9092?group=billing' --yes --json",
)
@click.argument("target", metavar="[URL|MODULE:APP]", required=False)
@click.option("--source", "sources", metavar="NAME", multiple=True, help="This source only. Can be given several times.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=30.0,
    help="How long to wait for consumers to end.  [default: 30]",
)
@click.option("--yes", is_flag=True, help="Do not ask before moving messages. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print what was moved and what is left as one JSON document.")
def command(target: str | None, sources: Sequence[str], wait: float, yes: bool, as_json: bool) -> None:
    """Move messages that wait in unpoison's own Kafka topics back to their source, and list what is left.

    Stop the consumers first. Delayed messages and retries go back as they were sent, and the consumers of the topic start them at
    once. Dead letters, topics and groups stay; the commands that remove them are printed. Without an argument it takes
    UNPOISON_URL. Safe to run again.
    """
    url, chosen = _meant(target, sources)
    found = leftovers_for(url, chosen)
    if any(left.waiting for left in found):
        confirm("\n".join(_question(left) for left in found if left.waiting), yes=yes)
    moved = {(left.source, left.group): _moved(url, left, wait) for left in found if left.waiting}
    left = leftovers_for(url, chosen) if moved else found
    if as_json:
        rows = [msgspec.to_builtins(each) | {"moved": moved.get((each.source, each.group), 0)} for each in left]
        print_json({"target": masked(url), "sources": rows, "is_left": any(each.topics or each.groups for each in left)})
        return
    for each in left:
        click.echo(_told(each, moved.get((each.source, each.group), 0)))
    if not left:
        click.echo(f"unpoison has left nothing at {masked(url)}.")


def _meant(target: str | None, sources: Sequence[str]) -> tuple[str, Sequence[str]]:
    target = target_or_url(target, "Name what to leave: give a URL or module:app")
    if is_url(target):
        return target, sources
    app = load(target)
    return app.settings.url, sources or list(consumers_of(app))


def _moved(url: str, left: Leftovers, wait: float) -> int:
    with progress("Moving") as advance:
        return move_back(url, left, wait, advance)


def _question(left: Leftovers) -> str:
    some = [(left.later, "before their delay is over"), (left.suspects, "suspected of crashing processes")]
    told = "".join(f", {count:,} of them {what}" for count, what in some if count)
    what = f"Move {counted(left.waiting, 'message')} of {_name(left)} back to {left.source!r}{told}?"
    return f"{what} Every group that consumes it receives and starts them at once."


def _told(left: Leftovers, moved: int) -> str:
    lines = [f"In {_name(left)}: {counted(moved, 'message')} moved back, {left.waiting or 'none'} waiting."]
    if left.repeats:
        lines.append(
            f"  {counted(left.repeats, 'message')} are done but come after one that is not: another consumer repeats them."
        )
    if left.dead:
        lines.append(f"  {counted(left.dead, 'dead letter')} would be deleted with its topic. To see them: unpoison dlq ls")
    if not left.removal:
        lines.append("  Nothing is left.")
        return _lines(lines)
    lines.append("  These objects are left. To remove them, once you do not need them:")
    return _lines([*lines, *(f"    {each}" for each in left.removal)])


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(map(one_line, lines))


def _name(left: Leftovers) -> str:
    return f"source {left.source!r} of group {left.group!r}" if left.group else f"source {left.source!r}"
