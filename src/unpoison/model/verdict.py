"""What happens to a message whose attempt has failed: one of three verdicts.

    Retry        start it again later
    DeadLetter   give it up and keep it, with everything known about why
    Discard      drop it on purpose; counted and logged

Refer to them through the module (`verdict.Retry`): a dead letter and the exception `Discard` have the same names elsewhere.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from unpoison.model.classification import ErrorClassification


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


Verdict: TypeAlias = Retry | DeadLetter | Discard


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict with the rule that made it, so that every decision can be explained."""

    verdict: Verdict
    classification: ErrorClassification
    rule: str
