"""`unpoison plan-topology` and `unpoison migrate`: what an administrator creates and grants for apps."""

import itertools
import textwrap
from collections.abc import Iterator, Sequence

import click
import msgspec

from unpoison.app import consumers_of
from unpoison.brokers import broker_for, is_url, losses_for, needs_for, statements_for
from unpoison.cli.loading import load
from unpoison.cli.options import target_or_url
from unpoison.cli.output import print_json
from unpoison.errors import UnpoisonError
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked, masked_text
from unpoison.port.provisioning import Needs, Step

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


class Part(msgspec.Struct):
    """What the sources of some apps need at one broker."""

    named: list[str]
    sources: list[str]
    needs: Needs
    creates: bool = False
    """Whether the app creates what is missing itself."""
    losing: Sequence[Finding] = ()
    """Findings of unpoison doctor about existing objects that lose messages."""


def script(parts: Sequence[Part], *, everything: bool = False) -> str:
    what = f"What {', '.join(dict.fromkeys(name for part in parts for name in part.named))} needs at its broker"
    lines = [HEAD.format(what=one_line(masked_text(what + "s." if len(parts) > 1 else what + ".")))]
    for part in parts:
        lines += [*_section(part, everything), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def summary(parts: Sequence[Part]) -> str:
    """One sentence for the person at the terminal."""
    missing = [step for part in parts for step in part.needs.missing()]
    if not missing:
        return "Nothing is missing: everything that these sources need exists, and the user may use it."
    kinds: dict[str, int] = {}
    for step in missing:
        kinds[step.kind] = kinds.get(step.kind, 0) + 1
    return f"To be created or granted: {', '.join(_counted(count, kind) for kind, count in kinds.items())}."


def _counted(count: int, kind: str) -> str:
    return kind if kind.endswith("s") else counted(count, kind)


def _section(part: Part, everything: bool) -> Iterator[str]:
    needs = part.needs
    steps = needs.steps if everything else needs.missing()
    yield from _comment(f"{needs.broker}, for {', '.join(map(repr, part.sources)) or 'no source'}.")
    if needs.unseen:
        yield from _comment(f"What exists is unknown, so everything is printed: {needs.unseen}")
    for note in needs.notes:
        yield from _comment(note)
    if part.creates and steps:
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


# The commands.


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
    parts = [_part(target, user) for target in _merged(targets or [target_or_url(None, NO_TARGET)], sources).values()]
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


NO_TARGET = "Name an app: give module:app, or a URL with --source NAME"


class _Target(msgspec.Struct):
    """The apps and sources at one URL."""

    url: str
    named: list[str]
    sources: list[str]
    creates: bool = False


def _merged(targets: Sequence[str], sources: Sequence[str]) -> dict[str, _Target]:
    """Apps that share a URL share one part of the script."""
    found: dict[str, _Target] = {}
    known: list[str] = []
    for text in targets:
        if is_url(text):
            if not sources:
                raise click.UsageError(f"Name the sources of {masked(text)} with --source NAME, or give module:app.")
            url, mine, creates = text, list(sources), False
        else:
            app = load(text)
            url, creates = app.settings.url, app.settings.create
            consumed = list(consumers_of(app))
            known += consumed
            mine = [name for name in consumed if not sources or name in sources]
        target = found.setdefault(url, _Target(url, [], []))
        target.named.append(masked(text))
        target.sources += [name for name in mine if name not in target.sources]
        target.creates |= creates
    unknown = [name for name in sources if not any(name in target.sources for target in found.values())]
    if unknown:
        raise click.UsageError(
            f"No app has a consumer of {unknown[0]!r}. Their sources: {', '.join(map(repr, known)) or 'none'}."
        )
    return found


def _part(target: _Target, user: str | None) -> Part:
    needs = needs_for(target.url, target.sources, user)
    losing = () if needs.unseen else [each for source in target.sources for each in _losses(target.url, source)]
    return Part(target.named, target.sources, needs, target.creates, list(dict.fromkeys(losing)))


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
        "targets": part.named,
        "sources": part.sources,
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
    """Create the tables that unpoison needs in this database, or upgrade them to this version.

    Consuming and publishing do that too, unless the app says create=False. Safe to run again, and several times at once.
    """
    if sql:
        click.echo(statements_for(url))
        return
    statements_for(url)  # raises for brokers that have no tables
    broker = broker_for(url)
    broker.open([])
    broker.close()
    click.echo(f"The tables in {masked(url)} are up to date.")
