"""Which kind of failure ended an attempt, and what happens to its message: one of three verdicts. And what can become of the
letter of one that was given up.

    Retry        start it again later
    DeadLetter   give it up and keep it, with everything known about why
    Discard      drop it on purpose; counted and logged

Refer to them through the module (`verdict.Retry`): a dead letter and the exception `Discard` have the same names elsewhere.
"""

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

STATES = ("dead", "replayed", "discarded")
"""What can have become of a letter. Only a dead one waits."""


class ErrorClassification(enum.StrEnum):
    """The kinds of failure, each with its own response."""

    TRANSIENT = "transient"
    THROTTLED = "throttled"
    PERMANENT = "permanent"
    INVALID = "invalid"
    BUG = "bug"
    CRASH = "crash"
    LOST = "lost"
    TIMEOUT = "timeout"
    OUTAGE = "outage"
    UNKNOWN = "unknown"


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
