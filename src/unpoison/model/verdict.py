"""What happens to a message next? One of five verdicts, and nothing else.

    Done         it was handled: let it go
    Retry        start it again later
    DeadLetter   give it up and keep it, with everything known about why
    Discard      drop it on purpose; counted and logged
    Release      hand it back untouched: it was not started, or a planned stop cut it off

Refer to them through the module (`verdict.Retry`): a dead letter and the exception `Discard` have the same names elsewhere.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from unpoison.model.classification import ErrorClassification


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Start it again `after` so long. `charged` says whether the start that just ended counts as an attempt."""

    after: timedelta
    charged: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """No further start. `reason` is the sentence a person reads first."""

    reason: str


@dataclass(frozen=True, slots=True)
class Discard:
    """The handler asked for it to be dropped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Hand it back as it came. `interrupted` says that a planned stop cut its run off."""

    interrupted: bool = False


Verdict: TypeAlias = Done | Retry | DeadLetter | Discard | Release

DONE: Final = Done()


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict with the rule that made it, so that every decision can be explained."""

    verdict: Verdict
    classification: ErrorClassification
    rule: str
