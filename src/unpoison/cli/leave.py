"""How does somebody stop using unpoison, without losing what waits in places of its own?"""

import os
from collections.abc import Sequence

import click
import msgspec

from unpoison.brokers import is_url, leftovers_for, move_back
from unpoison.cli.confirming import confirm
from unpoison.cli.json_output import print_json
from unpoison.cli.loading import load
from unpoison.cli.screen import progress
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Leftovers
from unpoison.port.broker_url import masked


@click.command(
    "leave",
    epilog="\b\nExamples:\n  unpoison leave shop:app\n  unpoison leave 'kafka://kafka-1:9092?group=billing' --yes --json",
)
@click.argument("target", metavar="[URL|MODULE:APP]", required=False)
@click.option("--source", "sources", metavar="NAME", multiple=True, help="Leave this source only. Can be given several times.")
@click.option(
    "--wait", metavar="SECONDS", type=click.FloatRange(0, 3600), default=30.0, help="For consumers to end. Default: 30."
)
@click.option("--yes", is_flag=True, help="Do not ask before messages are moved. Needed where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print what was moved and what is left as one JSON document.")
def command(target: str | None, sources: Sequence[str], wait: float, yes: bool, as_json: bool) -> None:
    """Put messages that wait in unpoison's own topics back into their source, and say what is left. For Kafka.

    Stop the consumers first. What waits for its time or for another start is put back as it was sent, and started at once by
    whoever consumes the source then. Dead letters, topics and groups stay: the commands that remove them are printed. Without an
    argument: UNPOISON_URL. Safe to run again.
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
        click.echo(f"Nothing of unpoison is at {masked(url)}.")


def _meant(target: str | None, sources: Sequence[str]) -> tuple[str, Sequence[str]]:
    target = target or os.environ.get("UNPOISON_URL")
    if not target:
        raise click.UsageError("What is to be left? Give a URL or module:app, or set UNPOISON_URL.")
    if is_url(target):
        return target, sources
    app = load(target)
    return app.settings.url, sources or list(app.consumers)


def _moved(url: str, left: Leftovers, wait: float) -> int:
    with progress("Moving") as advance:
        return move_back(url, left, wait, advance)


def _question(left: Leftovers) -> str:
    some = [(left.later, "before their time has come"), (left.suspects, "suspected of taking processes down")]
    told = "".join(f", {count:,} of them {what}" for count, what in some if count)
    what = f"Put {counted(left.waiting, 'message')} of {_name(left)} back into {left.source!r}{told}?"
    return f"{what} Every group that consumes it gets them, and starts them at once."


def _told(left: Leftovers, moved: int) -> str:
    lines = [f"In {_name(left)}: {counted(moved, 'message')} moved back, {left.waiting or 'none'} waiting."]
    if left.repeats:
        lines.append(
            f"  {counted(left.repeats, 'message')} that are done stand behind one that is not: another consumer repeats them."
        )
    if left.dead:
        lines.append(f"  {counted(left.dead, 'dead letter')} would be deleted with its topic. To see them: unpoison dlq ls")
    if not left.removal:
        lines.append("  Nothing of unpoison is left.")
        return _lines(lines)
    lines.append("  Left are these. To remove them, once you need none of it:")
    return _lines([*lines, *(f"    {each}" for each in left.removal)])


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(map(one_line, lines))


def _name(left: Leftovers) -> str:
    return f"source {left.source!r} of group {left.group!r}" if left.group else f"source {left.source!r}"
