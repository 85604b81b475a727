"""What the state machines answer and tell: plain values, to be carried out by the consumer and logged."""

import hashlib
from typing import NamedTuple, TypeAlias

import msgspec

from unpoison.control.admission import TooManyDead
from unpoison.control.evidence import End, Evidence
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.model.wording import first_line


class OperatorPause(msgspec.Struct, frozen=True):
    """A person has paused the source. `since` is time since 1970."""

    by: str
    reason: str
    since: float


PauseReason: TypeAlias = OperatorPause | TooManyDead | Evidence


class Paused(NamedTuple):
    """Nothing but probes starts."""

    reason: PauseReason


class Resumed(NamedTuple):
    """The pause is over after so many seconds; `reason` is why it was paused last. `is_on_probation`: dead letters are not
    admitted yet."""

    seconds: float
    reason: PauseReason
    is_on_probation: bool = False


class Opened(NamedTuple):
    """A dependency is down. Messages that fail on it wait, the others go on."""

    evidence: Evidence


class Closed(NamedTuple):
    """The outage of the dependency counts as over, so many seconds after the first message failed on it."""

    dependency: str
    seconds: float
    end: End = End.RECOVERED


class StillDown(NamedTuple):
    """A dependency has been down for so many seconds. Told again and again."""

    evidence: Evidence
    seconds: float


class Slowed(NamedTuple):
    """A dependency throttles so many messages: nothing starts for so many seconds, and then the source is slow for a while."""

    evidence: Evidence
    wait: float


class BudgetUsedUp(NamedTuple):
    """So many retries wait for their turn since this was last told."""

    retries: int
    share: float


class Expiring(NamedTuple):
    """What waits has waited for so many seconds, at least half of the time after which the broker deletes it."""

    waited: float
    limit: float


Change: TypeAlias = Paused | Resumed | Opened | Closed | StillDown | Slowed | BudgetUsedUp | Expiring


class PutOff(NamedTuple):
    """A message that must not start now, and for how many seconds. `waits_for` is the dependency that is down, if that is why."""

    delivery: Delivery
    after: float
    waits_for: str = ""


class Meaning(NamedTuple):
    """What a failure means: how it is to be judged and, if its message must wait for a dependency, for how long.

    `waits_for` is that dependency, or the one on which it failed. `refund` is how many earlier charges are taken back.
    """

    failure: Failure
    wait: float | None = None
    waits_for: str = ""
    refund: int = 0


def sample_of(failure: Failure) -> str:
    """A failure as people see it among the evidence."""
    return first_line(f"{failure.type_name}: {failure.text.strip()}")


def spread_of(message: str, now: float) -> float:
    """A number from 0 up to 1 that differs from message to message and from time to time."""
    seed = f"{message}|{now}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(seed, digest_size=6).digest()) / 2**48
