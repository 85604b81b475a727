"""How does a list of steps become a shell script that a person can read before running it?"""

import itertools
import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from unpoison.model.wording import counted, one_line
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked_text
from unpoison.port.provisioning import Needs, Step

WIDTH = 100

HEAD = """\
#!/bin/sh
# {what}
# Printed by unpoison plan-topology. Read it, then run it as an administrator: sh FILE
# It changes nothing that exists, and may be run again.
set -eu
"""


_CREATES = (
    "The rights are those of an app that creates nothing, and this one is set to create what is missing. Run it with "
    "App(…, create=False) or UNPOISON_CREATE=false."
)


class Part(msgspec.Struct):
    """What one broker needs, and for whom."""

    named: list[str]
    sources: list[str]
    needs: Needs
    creates: bool = False
    """Whether the app would create what is missing by itself."""
    losing: Sequence[Finding] = ()
    """What about the objects that exist loses messages, as unpoison doctor finds it."""


def script(parts: Sequence[Part], *, everything: bool = False) -> str:
    what = f"What {', '.join(dict.fromkeys(name for part in parts for name in part.named))} needs at its broker"
    lines = [HEAD.format(what=one_line(masked_text(what + "s." if len(parts) > 1 else what + ".")))]
    for part in parts:
        lines += [*_part(part, everything), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def summary(parts: Sequence[Part]) -> str:
    """One sentence for the person at the terminal."""
    missing = [step for part in parts for step in part.needs.missing()]
    if not missing:
        return "Nothing is missing: all that these sources need exists, and the user may use it."
    kinds: dict[str, int] = {}
    for step in missing:
        kinds[step.kind] = kinds.get(step.kind, 0) + 1
    return f"To be created or granted: {', '.join(_counted(count, kind) for kind, count in kinds.items())}."


def _counted(count: int, kind: str) -> str:
    return kind if kind.endswith("s") else counted(count, kind)


def _part(part: Part, everything: bool) -> Iterator[str]:
    needs = part.needs
    steps = needs.steps if everything else needs.missing()
    yield from _comment(f"{needs.broker}, for {', '.join(map(repr, part.sources)) or 'no source'}.")
    if needs.unseen:
        yield from _comment(f"Everything is printed, since it is not known what exists: {needs.unseen}")
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
    """As comments: whether to change what exists is its owner's decision."""
    yield from _comment(f"Before it is consumed, see {finding.name}, which unpoison doctor finds: {finding.problem}")
    how, *commands = finding.fix.splitlines()
    yield from _comment(how)
    yield from (f"#     {one_line(masked_text(line))}" for line in commands)


def _steps(alike: Sequence[Step]) -> Iterator[str]:
    """Under one comment: what is there for the same purpose."""
    first, last = alike[0], alike[-1]
    named = f"{first.kind} {first.name}" + (f" to {last.kind} {last.name}" if len(alike) > 1 else "")
    yield from _comment(f"{named}: {first.why}{' It exists.' if first.exists else ''}")
    for step in alike:
        yield from step.commands


def _comment(text: str) -> list[str]:
    """Whatever is in a name or an error, it stays a comment."""
    return [
        f"# {line}" for line in textwrap.wrap(one_line(masked_text(text)), WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
