"""The kinds of failure."""

import enum
from typing import NamedTuple


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


class Meaning(NamedTuple):
    """What an exception or a code means, and why, in words for the person on call."""

    classification: ErrorClassification
    why: str
    retry_after: float | None = None


TRANSIENT = ErrorClassification.TRANSIENT
THROTTLED = ErrorClassification.THROTTLED
PERMANENT = ErrorClassification.PERMANENT
BUG = ErrorClassification.BUG
UNKNOWN = ErrorClassification.UNKNOWN
