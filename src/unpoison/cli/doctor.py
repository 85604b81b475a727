"""`unpoison doctor`: finds settings of a broker or an app that lose or loop messages."""

import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import click
import msgspec
from rich.console import Console
from rich.text import Text

from unpoison.app_internals import consumers_of
from unpoison.brokers import checks_for, findings_for, is_url
from unpoison.cli.input_output import print_json
from unpoison.cli.screen import console
from unpoison.cli.target import load, target_or_url
from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.errors import CapabilityError, UnpoisonError
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked, masked_text

NAMES = ("endless-retry", "no-age-limit", "no-time-limit", "grace-too-short")

_UNSAID = {field.name: field.default for field in fields(ConsumerOptions)}["timeout"]
"""The default is a safety net, and says nothing about how long handlers take."""


def findings_of(settings: Settings, consumers: Sequence[ConsumerOptions]) -> Iterator[Finding]:
    for options in consumers:
        yield from _of_limits(options)
        yield from _of_time(settings, options)


def longest_of(consumers: Sequence[ConsumerOptions]) -> float | None:
    """How long a handler may run: infinity if one has no limit, None if there is none."""
    return max((math.inf if each.timeout is None else each.timeout for each in consumers), default=None)


def _of_limits(options: ConsumerOptions) -> Iterator[Finding]:
    limits = options.limits
    if limits.max_age is not None:
        return
    if limits.max_attempts is None:
        yield Finding(
            "endless-retry",
            f"Consumer {options.source!r} has max_attempts=None and max_age=None: a message that always fails is started again "
            f"for ever and never becomes a dead letter.",
            "Set one of them on the consumer:\nmax_attempts=5",
            loses=True,
        )
    else:
        yield Finding(
            "no-age-limit",
            f"Consumer {options.source!r} has max_age=None. Starts that end with RetryLater or Throttled, or by a planned stop, "
            f"are not charged: a message whose starts all end that way is retried for ever.",
            "Set a limit on the consumer:\nmax_age=86400",
        )


def _of_time(settings: Settings, options: ConsumerOptions) -> Iterator[Finding]:
    if options.timeout is None:
        ends = "until its worker is killed" if options.isolation == "process" else "until the whole process ends"
        yield Finding(
            "no-time-limit",
            f"Consumer {options.source!r} has timeout=None with isolation={options.isolation!r}: a handler that hangs keeps its "
            f"message and its place, {ends}. Once all {options.concurrency} places hang, the source is no longer consumed.",
            "On the consumer set more than the slowest message needs" + _where(options) + ":\ntimeout=300",
        )
    elif options.timeout > settings.grace and options.timeout != _UNSAID:
        yield Finding(
            "grace-too-short",
            f"Consumer {options.source!r} may run a message for {options.timeout:g} s, but a planned stop waits "
            f"{settings.grace:g} s. A handler that takes longer is killed at every deploy, and its message starts again.",
            f"Wait longer, here and in the supervisor (TimeoutStopSec, terminationGracePeriodSeconds):\n"
            f"App(…, grace={options.timeout + 5:g})",
        )


def _where(options: ConsumerOptions) -> str:
    """A thread cannot be ended from outside: a time limit alone frees the message, not the thread."""
    return "" if options.isolation == "process" else ", and run it in processes, which can be killed (isolation='process')"


# Printing. Sentences are wrapped to the width of the screen; commands to copy are not.


WIDEST = 110
"""Longer lines are hard to read, however wide the screen is."""

_GROUPS = (("Loses or loops messages", "bold red"), ("Stops consuming until it is fixed", "bold red"), ("Advice", "bold yellow"))


def show(what: str, found: Sequence[Finding], accepted: Sequence[str] = ()) -> None:
    screen = console()
    for number, (heading, style) in enumerate(_GROUPS):
        chosen = [finding for finding in found if _group(finding) == number]
        for place, finding in enumerate(chosen):
            screen.print("" if place else Text(f"{heading}\n", style=style))
            _show(screen, finding, is_accepted=finding.loses and finding.name in accepted)
        if chosen:
            screen.print()
    losing = sum(finding.loses for finding in found)
    verb = "lose or loop" if losing > 1 else "loses or loops"
    screen.print(Text(f"{counted(len(found), 'finding')} in {one_line(what)}; {losing or 'none'} {verb} messages."))


def _group(finding: Finding) -> int:
    return 0 if finding.loses else 1 if finding.stops else 2


def _show(screen: Console, finding: Finding, *, is_accepted: bool) -> None:
    advice, *lines = finding.fix.splitlines()
    screen.print(Text(f"  {finding.name}{' (accepted by the app)' if is_accepted else ''}", style="bold"))
    for text in (finding.problem, f"Fix: {advice}"):
        screen.print(Text(_wrapped(one_line(text), screen)), soft_wrap=True)
    for line in lines:
        screen.print(Text(f"      {one_line(line)}", style="cyan"), soft_wrap=True)


def _wrapped(text: str, screen: Console) -> str:
    """As wide as the screen, up to WIDEST; in a pipe each text is one line."""
    width = min(screen.width, WIDEST) if screen.is_terminal else len(text) + 4
    return textwrap.fill(
        text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )


@dataclass(slots=True)
class Examination:
    """What was checked, for what, and what was found. `trouble` is why the broker could not be checked."""

    what: str
    checked: list[str] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    trouble: UnpoisonError | None = None
    accepted: Sequence[str] = ()
    """Findings that the app accepts: they are printed, and do not make this a failure."""

    @property
    def is_well(self) -> bool:
        return not any(each.stops or (each.loses and each.name not in self.accepted) for each in self.found)

    def examine_app(self, reference: str, sources: Sequence[str], *, deep: bool) -> None:
        app = load(reference)
        consumers = _chosen([each.options for each in consumers_of(app).values()], sources)
        self.what = f"{reference} at {masked(app.settings.url)}"
        self.checked += NAMES
        self.accepted = app.settings.accept
        self.found += findings_of(app.settings, consumers)
        self.examine_broker(app.settings.url, [each.source for each in consumers], longest_of(consumers), deep=deep)
        if isinstance(self.trouble, CapabilityError):  # then only the app's own settings can be checked
            self.trouble = None

    def examine_broker(self, url: str, sources: Sequence[str], longest: float | None = None, *, deep: bool) -> None:
        try:
            checks = checks_for(url, deep=deep)
            self.found += findings_for(url, sources, longest, deep=deep)
            self.checked += checks
        except UnpoisonError as error:  # raised after the findings are printed
            self.trouble = error


@click.command(
    "doctor",
    epilog="\b\nExamples:\n"
    "  unpoison doctor shop:app\n"
    "  unpoison doctor postgresql://shop@db.example.com/shop --json\n"
    "  unpoison doctor sqlite:///shop.db --deep",
)
@click.argument("target", metavar="[URL|MODULE:APP]", required=False)
@click.option("--source", "sources", metavar="NAME", multiple=True, help="Check this source only. Can be given several times.")
@click.option("--deep", is_flag=True, help="Run slow checks too: read a whole SQLite file.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
def command(target: str | None, sources: Sequence[str], deep: bool, as_json: bool) -> None:
    """Check a broker, or an app with its broker, for settings that lose or loop messages.

    Each finding says what it does to your messages and how to fix it. The check changes nothing and needs no right to write.
    Without an argument it takes UNPOISON_URL. Exits with 1 if a finding loses or loops messages or keeps consumers from working,
    or if the broker cannot be reached.
    """
    target = target_or_url(target, "Name what to check: give a URL or module:app")
    examination = Examination(masked(target))
    if is_url(target):
        examination.examine_broker(target, sources, deep=deep)
    else:
        examination.examine_app(target, sources, deep=deep)
    examination.found.sort(key=_group)
    _tell(examination, as_json=as_json)
    if examination.trouble is not None:
        raise examination.trouble
    sys.exit(0 if examination.is_well else 1)


def _chosen(consumers: Sequence[ConsumerOptions], sources: Sequence[str]) -> Sequence[ConsumerOptions]:
    known = {options.source: options for options in consumers}
    for source in sources:
        if source not in known:
            names = ", ".join(map(repr, known)) or "none"
            raise click.UsageError(f"The app has no consumer of {source!r}. Its sources: {names}.")
    return [known[source] for source in sources] if sources else consumers


def _tell(examination: Examination, *, as_json: bool) -> None:
    if as_json:
        told = {
            "target": examination.what,
            "checked": examination.checked,
            "findings": msgspec.to_builtins(examination.found),
            "accepted": examination.accepted,
            "error": None if examination.trouble is None else masked_text(str(examination.trouble)),
        }
        print_json(told)
    elif examination.found:
        show(examination.what, examination.found, examination.accepted)
    elif examination.trouble is None:
        click.echo(f"Nothing found in {examination.what}. Checked for: {', '.join(examination.checked)}.")
