"""What do simulated messages do when they are started?"""

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from unpoison.decide.policy import PoisonPillHandler
from unpoison.errors import Discard, Permanent, RetryLater, Throttled
from unpoison.model.message import MessageMetadata

SLOW = 24
"""No handler that ends by itself takes more ticks than this; one that hangs is over its time limit after them."""


class End(enum.Enum):
    """How one run ends."""

    DONE = "is done"
    RAISE = "raises"
    LATER = "asks for another time"
    THROTTLED = "is throttled"
    PERMANENT = "says that no retry can help"
    DISCARD = "asks to be dropped"
    SEGFAULT = "segfaults"
    KILL_WORKER = "kills its worker"
    KILL_WORKERS = "kills all workers of its consumer process"
    KILL_NEIGHBOUR = "kills another worker, then exits"
    KILL_CONSUMER = "kills its consumer process with everything in it"
    KILL_WITH_PARTNER = "kills its consumer process if its partner runs in it, else is done"
    HANG = "hangs"
    LIE = "writes over the marks of its worker and dies"
    DAMAGE = "is done and leaves its worker damaged"
    BREAK = "is done and leaves its worker broken in a way that a check finds"


_AS_ONE_START = MessageMetadata("m")
_RAISED = {
    End.RAISE: ConnectionError("refused"),
    End.LATER: RetryLater(0.2),
    End.THROTTLED: Throttled(),
    End.PERMANENT: Permanent("never"),
    End.DISCARD: Discard("unwanted"),
}
FAILURES = {end: PoisonPillHandler().failure(error, _AS_ONE_START) for end, error in _RAISED.items()}
"""As a worker reports them."""

HURT = msgspec.structs.replace(FAILURES[End.PERMANENT], worker_damage="standard output is closed")
"""What an innocent message reports from a worker that another one broke."""

DEADLY = (
    *(End.SEGFAULT, End.KILL_WORKER, End.KILL_WORKERS, End.KILL_NEIGHBOUR),
    *(End.KILL_CONSUMER, End.HANG, End.LIE),
)
HARMLESS = (End.DONE, End.DAMAGE, End.BREAK, End.KILL_WITH_PARTNER, End.LATER, End.THROTTLED, End.DISCARD)
BAD = (*DEADLY, End.RAISE, End.LATER)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Start n ends like `first[n - 1]`; after these every start ends like `then`, or all of it again if `then` is None."""

    name: str
    first: tuple[End, ...] = ()
    then: End | None = End.DONE
    takes: tuple[int, int] = (1, 3)

    def end(self, start: int) -> End:
        if self.then is None:
            return self.first[(start - 1) % len(self.first)]
        return self.first[start - 1] if start <= len(self.first) else self.then

    @property
    def all_ends(self) -> set[End]:
        return {*self.first, *(() if self.then is None else (self.then,))}

    @property
    def is_innocent(self) -> bool:
        """It is done in the end unless others take it down: it never raises, and on its own it kills nothing."""
        return all(end in HARMLESS for end in self.all_ends) and self.then in (
            *(End.DONE, End.DISCARD, End.KILL_WITH_PARTNER),
            End.BREAK,
        )

    @property
    def is_endless(self) -> bool:
        """Without a limit on attempts it may go on for ever: no failure of it is seen, so that its age is not known."""
        last = self.first if self.then is None else (self.then,)
        return End.KILL_CONSUMER in last


def some_behaviour(rng: random.Random) -> Behaviour:
    return rng.choices(_MAKERS, _WEIGHTS)[0](rng)


def partners() -> tuple[Behaviour, Behaviour]:
    """Two that kill their consumer only together."""
    pair = Behaviour("deadly pair", then=End.KILL_WITH_PARTNER, takes=(3, 9))
    return pair, pair


def _flaky(rng: random.Random) -> Behaviour:
    times = rng.randint(1, 4)
    return Behaviour(f"raises {times} times", (End.RAISE,) * times)


def _kills_at(rng: random.Random) -> Behaviour:
    start, how = rng.randint(1, 4), rng.choice(DEADLY)
    return Behaviour(f"{how.value} at start {start}", (*(End.RAISE,) * (start - 1), how))


def _always(ends: Sequence[End]) -> Callable[[random.Random], Behaviour]:
    def make(rng: random.Random) -> Behaviour:
        how = rng.choice(ends)
        return Behaviour(f"always {how.value}", then=how)

    return make


def _alternates(rng: random.Random) -> Behaviour:
    ends = rng.sample(BAD, rng.randint(2, 4))
    return Behaviour("by turns: " + ", ".join(end.value for end in ends), tuple(ends), then=None)


def _anything(rng: random.Random) -> Behaviour:
    return Behaviour("anything", tuple(rng.choices(tuple(End), k=12)), then=rng.choice((End.DONE, *DEADLY)))


def _later(rng: random.Random) -> Behaviour:
    ends = rng.choices((End.LATER, End.THROTTLED), k=rng.randint(1, 3))
    return Behaviour("asks for another time at first", tuple(ends))


_MAKERS, _WEIGHTS = zip(
    (lambda rng: Behaviour("fine"), 10),
    (lambda rng: Behaviour("slow", takes=(5, SLOW)), 5),
    (lambda rng: Behaviour("leaves damage", (End.DAMAGE,)), 1),
    (lambda rng: Behaviour("breaks its worker", then=End.BREAK), 1),
    (lambda rng: Behaviour("drops itself", then=End.DISCARD), 1),
    (_later, 2),
    (_flaky, 3),
    (_kills_at, 4),
    (_always((End.RAISE, End.RAISE, End.PERMANENT)), 2),
    (_always(DEADLY), 4),
    (_always((End.KILL_CONSUMER,)), 3),
    (_always((End.LATER,)), 0.3),
    (_alternates, 4),
    (_anything, 3),
    strict=True,
)
