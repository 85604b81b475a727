"""`unpoison plan-topology`, `migrate` and `leave`: what an administrator creates and grants for apps, and removes again."""

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

import click
import msgspec

from unpoison.app_internals import consumers_of
from unpoison.brokers import broker_for, is_url, leftovers_for, losses_for, move_back, needs_for, statements_for
from unpoison.cli.input_output import confirm, print_json
from unpoison.cli.screen import progress
from unpoison.cli.target import load, target_or_url
from unpoison.errors import UnpoisonError
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Finding, Leftovers
from unpoison.port.broker_url import masked, masked_text
from unpoison.port.provisioning import Needs, Step
from unpoison.store.choice import has_needs, store_for, store_url
from unpoison.store.choice import statements_for as store_statements_for

# The shell script, to be read before it is run.


WIDTH = 100

HEAD = """\
#!/bin/sh
# {what}
# Printed by unpoison plan-topology. Read it, then run it as an administrator: sh FILE
# It changes nothing that exists, and may be run again.
set -eu
"""


_CREATES = (
    "These rights are enough for an app that creates nothing, but this app is set to create what is missing. Run it with "
    "App(…, create=False) or UNPOISON_CREATE=false."
)


class Apps(msgspec.Struct):
    """The apps and sources at one URL, and the stores of these apps."""

    url: str
    named: list[str] = []
    sources: list[str] = []
    stores: list[str] = []
    creates: bool = False
    """Whether an app creates what is missing itself."""


class Part(msgspec.Struct):
    """What these apps need at their broker."""

    apps: Apps
    needs: Needs
    losing: Sequence[Finding] = ()
    """Findings of unpoison doctor about existing objects that lose messages."""


def script(parts: Sequence[Part], *, everything: bool = False) -> str:
    what = f"What {', '.join(dict.fromkeys(name for part in parts for name in part.apps.named))} needs at its broker"
    lines = [HEAD.format(what=one_line(masked_text(what + "s." if len(parts) > 1 else what + ".")))]
    for part in parts:
        lines += [*_section(part, everything), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def summary(parts: Sequence[Part]) -> str:
    """One sentence for the person at the terminal."""
    missing = [step for part in parts for step in part.needs.missing()]
    if not missing:
        return "Nothing is missing: everything that these sources need exists, and the user may use it."
    kinds = Counter(step.kind for step in missing)
    told = (kind if kind.endswith("s") else counted(count, kind) for kind, count in kinds.items())
    return f"To be created or granted: {', '.join(told)}."


def _section(part: Part, everything: bool) -> Iterator[str]:
    needs = part.needs
    steps = needs.steps if everything else needs.missing()
    yield from _comment(f"{needs.broker}, for {', '.join(map(repr, part.apps.sources)) or 'no source'}.")
    if needs.unseen:
        yield from _comment(f"What exists is unknown, so everything is printed: {needs.unseen}")
    for note in needs.notes:
        yield from _comment(note)
    if part.apps.creates and steps:
        yield from _comment(_CREATES)
    for finding in part.losing:
        yield from _finding(finding)
    if not steps:
        yield from _comment("Nothing is missing here.")
        return
    yield from needs.setup
    for _, alike in itertools.groupby(steps, key=lambda step: (step.why, step.exists)):
        yield ""
        yield from _steps(list(alike))


def _finding(finding: Finding) -> Iterator[str]:
    """As comments: the owner decides whether to change what exists."""
    yield from _comment(f"Before consuming, see {finding.name}, found by unpoison doctor: {finding.problem}")
    how, *commands = finding.fix.splitlines()
    yield from _comment(how)
    yield from (f"#     {one_line(masked_text(line))}" for line in commands)


def _steps(alike: Sequence[Step]) -> Iterator[str]:
    """Steps with the same purpose, under one comment."""
    first, last = alike[0], alike[-1]
    named = f"{first.kind} {first.name}" + (f" to {last.kind} {last.name}" if len(alike) > 1 else "")
    yield from _comment(f"{named}: {first.why}{' It exists.' if first.exists else ''}")
    for step in alike:
        yield from step.commands


def _comment(text: str) -> list[str]:
    """One line or more, each a comment, whatever characters a name or an error contains."""
    return [
        f"# {line}" for line in textwrap.wrap(one_line(masked_text(text)), WIDTH, break_long_words=False, break_on_hyphens=False)
    ]


@click.command(
    "plan-topology",
    epilog="\b\nExamples:\n"
    "  unpoison plan-topology shop:app --user shop > create.sh\n"
    "  unpoison plan-topology shop:app billing:app --json\n"
    "  unpoison plan-topology amqp://admin@mq/shop --source orders --all",
)
@click.argument("targets", metavar="[MODULE:APP|URL]...", nargs=-1)
@click.option("--source", "sources", metavar="NAME", multiple=True, help="Only this source. Can be given several times.")
@click.option("--user", metavar="NAME", help="The user who gets the rights.  [default: the user in the URL]")
@click.option("--all", "everything", is_flag=True, help="Also print what exists already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a script.")
def plan_topology(targets: Sequence[str], sources: Sequence[str], user: str | None, everything: bool, as_json: bool) -> None:
    """Print a shell script that creates everything an app needs.

    The script also grants the rights that the app's user needs. An administrator runs it; then the app runs with create=False.
    It creates what is missing, for all sources and all brokers at once; if a server cannot be reached, everything. This command
    itself changes nothing. Without an argument it takes UNPOISON_URL.
    """
    targets = targets or [target_or_url(None, "Name an app: give module:app, or a URL with --source NAME")]
    parts = [part for apps in _merged(targets, sources).values() for part in _parts(apps, user)]
    if as_json:
        print_json({"brokers": [_document(part, everything) for part in parts]})
    else:
        click.echo(script(parts, everything=everything), nl=False)
    for part in parts:
        if part.needs.unseen:
            told = f"What exists at {part.needs.broker} is unknown, so everything is printed: {part.needs.unseen}"
            click.echo(f"Warning: {masked_text(told)}", err=True)
    if not as_json:
        click.echo(summary(parts), err=True)


def _merged(targets: Sequence[str], sources: Sequence[str]) -> dict[str, Apps]:
    """Apps that share a URL share one part of the script."""
    found: dict[str, Apps] = {}
    known: list[str] = []
    for text in targets:
        if is_url(text):
            if not sources:
                raise click.UsageError(f"Name the sources of {masked(text)} with --source NAME, or give module:app.")
            url, store, mine, creates = text, store_url(text, None), list(sources), False
        else:
            app = load(text)
            url, store, creates = app.settings.url, app.settings.store or "", app.settings.create
            consumed = list(consumers_of(app))
            known += consumed
            mine = [name for name in consumed if not sources or name in sources]
        target = found.setdefault(url, Apps(url))
        target.named.append(masked(text))
        target.stores += [store] if store and store not in target.stores else []
        target.sources += [name for name in mine if name not in target.sources]
        target.creates |= creates
    unknown = [name for name in sources if not any(name in target.sources for target in found.values())]
    if unknown:
        raise click.UsageError(
            f"No app has a consumer of {unknown[0]!r}. Their sources: {', '.join(map(repr, known)) or 'none'}."
        )
    return found


def _parts(apps: Apps, user: str | None) -> Iterator[Part]:
    """What is needed at the broker, and at stores elsewhere."""
    yield _part(apps, user)
    for url in apps.stores:
        if url != apps.url and (needs := _needs_of_store(url, user)):
            yield Part(apps, needs)


def _part(apps: Apps, user: str | None) -> Part:
    needs = needs_for(apps.url, apps.sources, user)
    if apps.url in apps.stores and (store := _needs_of_store(apps.url, user)):
        needs = msgspec.structs.replace(needs, steps=[*needs.steps, *store.steps])
    losing = () if needs.unseen else [each for source in apps.sources for each in _losses(apps.url, source)]
    return Part(apps, needs, list(dict.fromkeys(losing)))


def _needs_of_store(url: str, user: str | None) -> Needs | None:
    if not has_needs(url):
        return None
    from unpoison.store import provisioning  # noqa: PLC0415 - psycopg is an extra

    return provisioning.needs(url, user)


def _losses(url: str, source: str) -> Sequence[Finding]:
    """Findings that keep a consumer from starting though everything exists; none where this user may not look."""
    try:
        return losses_for(url, source)
    except UnpoisonError:
        return ()


def _document(part: Part, everything: bool) -> dict[str, object]:
    needs = part.needs
    steps = needs.steps if everything else needs.missing()
    return {
        "targets": part.apps.named,
        "sources": part.apps.sources,
        "broker": needs.broker,
        "unseen": masked_text(needs.unseen) or None,
        "notes": needs.notes,
        "setup": needs.setup,
        "steps": msgspec.to_builtins(steps),
        "missing": len(needs.missing()),
        "findings": msgspec.to_builtins(part.losing),
    }


@click.command(
    "migrate",
    epilog="\b\nExamples:\n"
    "  unpoison migrate postgresql://shop@db.example.com/shop\n"
    "  unpoison migrate --sql postgresql:// > migrations/0042_unpoison.sql",
)
@click.argument("url")
@click.option("--sql", is_flag=True, help="Only print the statements, for your own migrations. Connects to nothing.")
def migrate(url: str, sql: bool) -> None:
    """Create the tables that unpoison needs in this database, or upgrade them to this version: those of the broker, and those
    of the store.

    Consuming and publishing do that too, unless the app says create=False. Safe to run again, and several times at once.
    """
    statements = statements_for(url)  # raises for brokers that have no tables
    if sql:
        click.echo(f"{statements}\n{store_statements_for(url)}")
        return
    broker, store = broker_for(url), store_for(url)
    broker.open([])
    broker.close()
    store.open()
    store.close()
    click.echo(f"The tables in {masked(url)} are up to date.")


# For people who stop using unpoison on Kafka.


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
def leave(target: str | None, sources: Sequence[str], wait: float, yes: bool, as_json: bool) -> None:
    """Move messages that wait in unpoison's own Kafka topics back to their source, and list what is left.

    Stop the consumers first. Delayed messages and retries go back as they were sent, and the consumers of the topic start them at
    once. Dead letters, topics and groups stay; the commands that remove them are printed. Without an argument it takes
    UNPOISON_URL. Safe to run again.
    """
    url = target_or_url(target, "Name what to leave: give a URL or module:app")
    chosen = sources
    if not is_url(url):
        app = load(url)
        url, chosen = app.settings.url, sources or list(consumers_of(app))
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
    lines.append("  These objects are left. To remove them, once you do not need them:" if left.removal else "  Nothing is left.")
    return "\n".join(map(one_line, [*lines, *(f"    {each}" for each in left.removal)]))


def _name(left: Leftovers) -> str:
    return f"source {left.source!r} of group {left.group!r}" if left.group else f"source {left.source!r}"
