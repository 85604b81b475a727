"""What is known about one source at this moment: what was counted, how its consumer is, what its broker and store said last."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from unpoison.observing.counts import Dependencies, SourceCounts
from unpoison.observing.polling import Polled, Reading
from unpoison.port.at_broker import AtBroker
from unpoison.reporting.consumer_state import ConsumerState, ConsumerView

PAUSES = ("outage", "admission", "operator", "broker")


class Watched(NamedTuple):
    """One source with everything that is known about it."""

    view: ConsumerView
    counts: SourceCounts
    dependencies: Dependencies
    depths: Polled[AtBroker]
    letters: Polled[int] | None


class Look:
    """One look at a source."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.counts, self.numbers = watched.counts, watched.view.numbers
        self.state: ConsumerState | None = watched.view.state()
        self.is_running = watched.view.is_running()
        self.broker: AtBroker | None = watched.depths.fresh(watched.view.source)

    @property
    def dead(self) -> int | None:
        """Letters at the broker and in the store; None unless both are known: half of them would look as if some had gone."""
        letters = 0 if self._watched.letters is None else self._watched.letters.fresh(self._watched.view.source)
        return None if self.broker is None or letters is None else self.broker.depth.dead + letters

    @property
    def depths(self) -> Mapping[str, int]:
        depth = None if self.broker is None else self.broker.depth
        return {} if depth is None else {"ready": depth.ready, "delayed": depth.delayed, "running": depth.leased}

    @property
    def retention_used(self) -> float | None:
        """As the broker tells, or as the consumer has seen: some brokers do not say which message waits longest."""
        seen = None if self.state is None else self.state.retention_used
        if self.broker is None or self.broker.oldest is None or not self.broker.deleted_after:
            return seen
        return max(seen or 0.0, min(1.0, self.broker.oldest / self.broker.deleted_after))

    @property
    def read_at(self) -> float | None:
        """When everything was read that belongs to it."""
        asked = [each for each in (self._watched.depths, self._watched.letters) if each is not None]
        found: list[Reading[Any] | None] = [each.last(self._watched.view.source) for each in asked]
        times = [each.at for each in found if each is not None]
        return min(times) if len(times) == len(asked) else None

    @property
    def read_errors(self) -> int:
        asked = [each for each in (self._watched.depths, self._watched.letters) if each is not None]
        return sum(each.errors.get(self._watched.view.source, 0) for each in asked)

    @property
    def pauses(self) -> Mapping[str, int]:
        found = {*(self.state.pauses if self.state is not None else ()), *(["broker"] if self.counts.is_broker_lost else ())}
        return {reason: int(reason in found) for reason in PAUSES}

    @property
    def breakers(self) -> Mapping[str, int]:
        return self._watched.dependencies.states({} if self.state is None else self.state.circuits)
