"""Does this broker, or this app, have one of the traps that lose or loop messages?"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import click
import msgspec

from unpoison.brokers import checks_for, findings_for, is_url
from unpoison.cli.doctor.settings import NAMES, findings_of, longest_of
from unpoison.cli.doctor.showing import show
from unpoison.cli.json_output import print_json
from unpoison.cli.loading import load
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import CapabilityError, UnpoisonError
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked, masked_text


@dataclass(slots=True)
class Visit:
    """What was looked at, for what, and what was found. `trouble` is why the broker could not be looked at."""

    what: str
    checked: list[str] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    trouble: UnpoisonError | None = None
    accepted: Sequence[str] = ()
    """Findings that the app accepts: they are told, and do not make this a failure."""

    @property
    def is_well(self) -> bool:
        return not any(each.stops or (each.loses and each.name not in self.accepted) for each in self.found)

    def see_app(self, reference: str, sources: Sequence[str], *, deep: bool) -> None:
        app = load(reference)
        consumers = _chosen([each.options for each in app.consumers.values()], sources)
        self.what = f"{reference} at {masked(app.settings.url)}"
        self.checked += NAMES
        self.accepted = app.settings.accept
        self.found += findings_of(app.settings, consumers)
        self.see_broker(app.settings.url, [each.source for each in consumers], longest_of(consumers), deep=deep)
        if isinstance(self.trouble, CapabilityError):  # the app's own settings are all there is to see
            self.trouble = None

    def see_broker(self, url: str, sources: Sequence[str], longest: float | None = None, *, deep: bool) -> None:
        try:
            checks = checks_for(url, deep=deep)
            self.found += findings_for(url, sources, longest, deep=deep)
            self.checked += checks
        except UnpoisonError as error:  # told after what has been found
            self.trouble = error


@click.command(
    "doctor",
    epilog="\b\nExamples:\n"
    "  unpoison doctor shop:app\n"
    "  unpoison doctor postgresql://shop@db.example.com/shop --json\n"
    "  unpoison doctor sqlite:///shop.db --deep",
)
@click.argument("target", metavar="[URL|MODULE:APP]", required=False)
@click.option("--source", "sources", metavar="NAME", multiple=True, help="Look at this source only. Can be given several times.")
@click.option("--deep", is_flag=True, help="Look at what takes long too: read a whole SQLite file.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
def command(target: str | None, sources: Sequence[str], deep: bool, as_json: bool) -> None:
    """Check a broker, or an app with its broker, for what loses or loops messages.

    Each finding says what it would do to you and how to mend it. Looking changes nothing and needs no right to write. Without an
    argument: UNPOISON_URL. Exit code 1 if a finding loses or loops messages, or keeps everything from working, or if the broker
    cannot be reached.
    """
    target = target or os.environ.get("UNPOISON_URL")
    if not target:
        raise click.UsageError("What is to be checked? Give a URL or module:app, or set UNPOISON_URL.")
    visit = Visit(masked(target))
    if is_url(target):
        visit.see_broker(target, sources, deep=deep)
    else:
        visit.see_app(target, sources, deep=deep)
    visit.found.sort(key=lambda finding: (not finding.loses, not finding.stops))
    _tell(visit, as_json=as_json)
    if visit.trouble is not None:
        raise visit.trouble
    sys.exit(0 if visit.is_well else 1)


def _chosen(consumers: Sequence[ConsumerOptions], sources: Sequence[str]) -> Sequence[ConsumerOptions]:
    known = {options.source: options for options in consumers}
    for source in sources:
        if source not in known:
            raise click.UsageError(f"The app has no consumer of {source!r}. It has: {', '.join(map(repr, known)) or 'none'}.")
    return [known[source] for source in sources] if sources else consumers


def _tell(visit: Visit, *, as_json: bool) -> None:
    if as_json:
        error = None if visit.trouble is None else masked_text(str(visit.trouble))
        rows = msgspec.to_builtins(visit.found)
        told = {"target": visit.what, "checked": visit.checked, "findings": rows, "accepted": visit.accepted, "error": error}
        print_json(told)
    elif visit.found:
        show(visit.what, visit.found, visit.accepted)
    elif visit.trouble is None:
        click.echo(f"Nothing found in {visit.what}. Checked for: {', '.join(visit.checked)}.")
