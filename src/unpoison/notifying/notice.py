"""What does one notice say? Plain values, without the form in which it is sent."""

import enum
from collections.abc import Mapping, Sequence

import msgspec


class Kind(enum.StrEnum):
    """What notices are about. Receivers may rely on these words."""

    NEW_GROUP = "new-group"
    GROWING = "growing"
    PAUSED = "paused"
    RESUMED = "resumed"
    OUTAGE = "outage"
    OUTAGE_OVER = "outage-over"
    CRASH_LOOP = "crash-loop"
    BUDGET = "budget"
    RETENTION = "retention"
    SUMMARY = "summary"
    TEST = "test"


OF_LETTERS = (Kind.NEW_GROUP, Kind.GROWING)
"""Those that a flood of poison makes many of: they never take the room of the others."""

ENDS = {Kind.PAUSED: Kind.RESUMED, Kind.OUTAGE: Kind.OUTAGE_OVER}
"""What lasts, and how its end is called."""


class Step(msgspec.Struct, frozen=True):
    """Something to do: why, and the command that does it."""

    text: str
    command: str


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a person should hear of.

    `subject` names the thing, so that it is not told twice, and `size` says how bad it is. `since` is on the clock of the caller.
    `is_again`: it was told already and has become ten times worse; `is_end`: it is over. `parts` are several notices of one kind
    told as one.
    """

    kind: Kind
    subject: str
    size: float
    title: str
    source: str
    since: float
    bad: str
    doing: str
    todo: Sequence[Step] = ()
    counts: Mapping[str, float] = {}
    groups: Mapping[str, int] = {}
    fingerprint: str = ""
    classification: str = ""
    error: str = ""
    letter_id: str = ""
    is_again: bool = False
    is_end: bool = False
    parts: Sequence["Notice"] = ()


class Place(msgspec.Struct, frozen=True):
    """Where notices come from: the same for all of an app. `link` has {source} and {group} where their names belong."""

    host: str
    process: int
    app: str = ""
    link: str = ""
