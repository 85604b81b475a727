"""What must an administrator create or grant, for all sources of one app or of several?"""

import os
from collections.abc import Sequence

import click
import msgspec

from unpoison.brokers import is_url, losses_for, needs_for
from unpoison.cli.json_output import print_json
from unpoison.cli.loading import load
from unpoison.cli.topology.script import Part, script, summary
from unpoison.errors import UnpoisonError
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked, masked_text


@click.command(
    "plan-topology",
    epilog="\b\nExamples:\n"
    "  unpoison plan-topology shop:app --user shop > create.sh\n"
    "  unpoison plan-topology shop:app billing:app --json\n"
    "  unpoison plan-topology amqp://admin@mq/shop --source orders --all",
)
@click.argument("targets", metavar="[MODULE:APP|URL]...", nargs=-1)
@click.option("--source", "sources", metavar="NAME", multiple=True, help="Only this source. Can be given several times.")
@click.option("--user", metavar="NAME", help="Who gets the rights. Without it: the user in the URL.")
@click.option("--all", "everything", is_flag=True, help="Print what exists already too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a script.")
def command(targets: Sequence[str], sources: Sequence[str], user: str | None, everything: bool, as_json: bool) -> None:
    """Print a shell script that creates everything an app needs.

    It also grants the rights that the app's user needs. An administrator runs it; afterwards the app runs with create=False.
    Printed is what is missing, for all sources and all brokers at once; if a server cannot be reached, everything. Looking
    changes nothing. Without an argument: UNPOISON_URL.
    """
    parts = [_part(target, user) for target in _merged(targets or _from_environment(), sources).values()]
    if as_json:
        print_json({"brokers": [_document(part, everything) for part in parts]})
    else:
        click.echo(script(parts, everything=everything), nl=False)
    for part in parts:
        if part.needs.unseen:
            told = f"It is not known what exists at {part.needs.broker}, so everything is printed: {part.needs.unseen}"
            click.echo(f"Warning: {masked_text(told)}", err=True)
    if not as_json:
        click.echo(summary(parts), err=True)


class _Target(msgspec.Struct):
    """What the apps at one URL need."""

    url: str
    named: list[str]
    sources: list[str]
    creates: bool = False


def _from_environment() -> Sequence[str]:
    url = os.environ.get("UNPOISON_URL")
    if not url:
        raise click.UsageError("For which app? Give module:app, or a URL with --source NAME, or set UNPOISON_URL.")
    return [url]


def _merged(targets: Sequence[str], sources: Sequence[str]) -> dict[str, _Target]:
    """Apps that share a URL share one part of the script."""
    found: dict[str, _Target] = {}
    known: list[str] = []
    for text in targets:
        if is_url(text):
            if not sources:
                raise click.UsageError(f"Which sources of {masked(text)}? Name each with --source NAME, or give module:app.")
            url, mine, creates = text, list(sources), False
        else:
            app = load(text)
            url, creates = app.settings.url, app.settings.create
            known += list(app.consumers)
            mine = [name for name in app.consumers if not sources or name in sources]
        target = found.setdefault(url, _Target(url, [], []))
        target.named.append(masked(text))
        target.sources += [name for name in mine if name not in target.sources]
        target.creates |= creates
    unknown = [name for name in sources if not any(name in target.sources for target in found.values())]
    if unknown:
        raise click.UsageError(f"No app has a consumer of {unknown[0]!r}. There are: {', '.join(map(repr, known)) or 'none'}.")
    return found


def _part(target: _Target, user: str | None) -> Part:
    needs = needs_for(target.url, target.sources, user)
    losing = () if needs.unseen else [each for source in target.sources for each in _losses(target.url, source)]
    return Part(target.named, target.sources, needs, target.creates, list(dict.fromkeys(losing)))


def _losses(url: str, source: str) -> Sequence[Finding]:
    """What would keep a consumer from starting though everything exists; nothing where this user may not look."""
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
