"""How do findings look on a screen? Sentences are wrapped to its width; what is to be copied never is."""

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from unpoison.cli.screen import console
from unpoison.model.wording import one_line
from unpoison.port.broker import Finding

WIDEST = 110
"""Longer lines are hard to read, however wide the screen is."""

_GROUPS = (("Loses or loops messages", "bold red"), ("Stands still until it is mended", "bold red"), ("Advice", "bold yellow"))


def show(what: str, found: Sequence[Finding], accepted: Sequence[str] = ()) -> None:
    screen = console()
    for number, (heading, style) in enumerate(_GROUPS):
        chosen = [finding for finding in found if _group(finding) == number]
        if chosen:
            screen.print(Text(heading, style=style))
        for finding in chosen:
            screen.print()
            _show(screen, finding, is_accepted=finding.loses and finding.name in accepted)
        if chosen:
            screen.print()
    losing = sum(finding.loses for finding in found)
    verb = "loses or loops" if losing == 1 else "lose or loop"
    screen.print(Text(f"{len(found)} found in {one_line(what)}; {losing or 'none'} of them {verb} messages."))


def _group(finding: Finding) -> int:
    return 0 if finding.loses else 1 if finding.stops else 2


def _show(screen: Console, finding: Finding, *, is_accepted: bool) -> None:
    advice, *lines = finding.fix.splitlines()
    screen.print(Text(f"  {finding.name}{' (the app accepts it)' if is_accepted else ''}", style="bold"))
    for text in (finding.problem, f"Fix: {advice}"):
        screen.print(Text(_wrapped(one_line(text), screen)), soft_wrap=True)
    for line in lines:
        screen.print(Text(f"      {one_line(line)}", style="cyan"), soft_wrap=True)


def _wrapped(text: str, screen: Console) -> str:
    """As wide as the screen, within reason; in a pipe each text is one line."""
    width = min(screen.width, WIDEST) if screen.is_terminal else len(text) + 4
    return textwrap.fill(
        text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
