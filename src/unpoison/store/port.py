"""What a store must do: it is the memory that the consumers of a fleet and their operators share.

Nothing on the way of a message waits for it. Times are seconds since 1970 by the clock of the store, so that the clocks of hosts
need not agree; where a caller passes a time, it is one that follows from what the store gave it (`Shared.now`), or a length.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from unpoison.errors import StoreUnavailable

OPERATOR = "operator"
"""A person has paused the source."""
ADMISSION = "admission"
"""A consumer has paused it: too many messages were to become dead letters."""
RESUMED = "resumed"
"""Stands among the pauses of a source and is none: a person has ended one because of dead letters, and when."""

OPEN = "open"
"""A dependency is down: what needs it waits, other messages go on."""
PAUSING = "pausing"
"""The same, and hardly any other message succeeds: only probes are started."""

FORGOTTEN = 1_200.0
"""Seconds after which an outage is forgotten of which nothing was heard: whatever waited for it has come due by then. One of a
source that a person has paused is not: nothing can be heard of it."""

MOST_INTERVALS = 2
"""Intervals for which a probe is planned ahead at most: one, and some room for clocks that differ a little."""


class TurnLost(StoreUnavailable):
    """Another collector has taken the turn: what this one has read may have been stored, and deleted, since."""


class CannotKeep(StoreUnavailable):
    """The store is there and cannot keep something that it was given: it is too large, say."""


class Pause(msgspec.Struct, frozen=True):
    """A source that is paused: by whom, why, since when (the store says when). `code_version` is the version of the consumer
    that paused it."""

    source: str
    kind: str
    reason: str
    by: str
    since: float = 0.0
    code_version: str | None = None
    evidence: Mapping[str, Any] = {}


class SharedCircuit(msgspec.Struct, frozen=True):
    """The outage of a dependency, as all consumers of a source know it. Stored only while it lasts. `state` is OPEN or PAUSING.

    `by` is the consumer that opened it, or the last one that was allowed to probe. `heard_at` is when a message last failed on
    the dependency or tried it. `revision` is 0 for an outage that the store does not have yet, and grows with each change of
    state: so a consumer that has not heard of a change, or of the end of the outage, does not undo it. `rate` is how many
    messages a second the consumer started that opened it, 0 if it did not know: one that is started anew goes on from there.
    """

    source: str
    dependency: str
    is_named: bool
    state: str
    since: float
    messages: int
    samples: tuple[str, ...]
    next_probe_at: float
    interval: float
    by: str
    revision: int = 0
    heard_at: float = 0.0
    rate: float = 0.0

    def due_in(self, now: float) -> float:
        """Seconds until the next probe is due; below 0 if it is late. A time that is further away than any probe is planned was
        set by a clock that has been set back since: then it is long overdue."""
        ahead = self.next_probe_at - now
        return ahead if ahead <= MOST_INTERVALS * self.interval else float("-inf")


class ConsumerSign(msgspec.Struct, frozen=True):
    """A sign of life of one consumer of one source. The store says when it started and when it was seen last.

    `done`, `failed` and `dead` are its messages so far: those handled, starts that failed, and dead letters among them.
    """

    consumer: str
    source: str
    code_version: str | None
    started_at: float
    seen_at: float
    state: str
    done: int = 0
    failed: int = 0
    dead: int = 0


class Shared(msgspec.Struct, frozen=True):
    """What the fleet knows about one source. `now` is the time by the store's clock.

    `newer_versions` are the code versions that the store saw for the first time later than the version that the ADMISSION pause
    is about; if that one has none, later than the pause. `consumers` is how many are alive, `living_versions` are theirs.
    `resumed_at` is when a person last ended an ADMISSION pause; None if nobody ever did.
    """

    pauses: Sequence[Pause]
    circuits: Sequence[SharedCircuit]
    newer_versions: Collection[str | None]
    consumers: int
    now: float
    living_versions: Collection[str | None] = ()
    resumed_at: float | None = None


class Store(Protocol):
    """Used by one thread. Raises StoreUnavailable while it is away, and can be opened again then."""

    def open(self, *, create: bool = True) -> None:
        """Connect, and bring the tables to the newest version. With create=False: refuse if they are missing or older."""

    def close(self) -> None: ...

    def exchange(self, sign: ConsumerSign, circuits: Sequence[SharedCircuit]) -> Shared:
        """A sign of life and the circuits that a consumer knows of, for what the fleet knows. Writes only if there is news."""

    def claim_probe(self, source: str, dependency: str, interval: float, consumer: str) -> bool:
        """Whether this consumer may probe now for the whole fleet. If so, the next probe is due after `interval`."""

    def close_circuit(self, source: str, dependency: str, since: float | None = None) -> None:
        """The outage is over: the one that began then, or whichever there is."""

    def pause(self, pause: Pause) -> None:
        """Pause a source for all its consumers. One pause of each kind: a second one changes nothing and is no error, but that an
        ADMISSION pause of a newer code version takes the place of an older one's."""

    def resume(self, source: str, by: str, kinds: Collection[str] = (OPERATOR, ADMISSION)) -> Sequence[Pause]:
        """End these pauses; returns those that there were."""

    def leave(self, consumer: str, source: str) -> None:
        """This consumer has ended."""

    def pauses(self, source: str | None = None) -> Sequence[Pause]: ...

    def circuits(self, source: str | None = None) -> Sequence[SharedCircuit]: ...

    def consumers(self, source: str | None = None) -> Sequence[ConsumerSign]:
        """Those that have given a sign of life lately."""

    def waiting_letters(self) -> Mapping[str, int]:
        """How many dead letters wait in the store, by source."""
