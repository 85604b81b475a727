"""The workers of a simulation: so many messages a second, each for one step of the clock."""

import math
from collections.abc import Callable, Sequence

from unpoison.model.message import Delivery
from unpoison.simulation.ledger import Ledger
from unpoison.simulation.trouble import Trouble
from unpoison.workers.interface import Ended, Interrupted


class Crew:
    """Runs `per_step` messages in each step of the clock; of half a message, one in every other step. Takes as many again as it
    runs, so that there is something to take back."""

    def __init__(self, per_step: float, trouble: Trouble, clock: Callable[[], float], ledger: Ledger) -> None:
        self._per_step, self._trouble, self._clock, self._ledger = per_step, trouble, clock, ledger
        self._spare = 0.0
        """The part of a message that the steps before had room for."""
        self._queue: list[Delivery] = []
        self._runs: Sequence[Delivery] = ()
        self._results: list[Ended] = []
        self._next: Ended | None = None

    def step(self) -> None:
        """What runs has ended, and the next messages begin."""
        if self._next is not None:
            self._results.append(self._next)
        allowed = self._spare + self._per_step
        self._runs, self._queue = self._queue[: int(allowed)], self._queue[int(allowed) :]
        spare = allowed - len(self._runs)
        self._spare = spare % 1.0 if self._per_step >= 1 else min(spare, 1.0)
        self._next = self._begin(self._runs) if self._runs else None

    def _begin(self, deliveries: Sequence[Delivery]) -> Ended:
        now = self._clock()
        calls, failures = self._trouble.run(deliveries, now)
        self._ledger.called(deliveries, calls, len(failures), now)
        return Ended(deliveries, failures)

    def room(self) -> int:
        return 2 * max(1, math.ceil(self._per_step)) - self.running()

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self._queue += fresh
        self._queue += deliveries

    def ended(self) -> Sequence[Ended]:
        results, self._results = self._results, []
        return results

    def running(self) -> int:
        return len(self._queue) + len(self._runs)

    def take_back(self) -> Sequence[Delivery]:
        queue, self._queue = self._queue, []
        return queue

    def interrupt(self) -> Interrupted:
        unstarted, running = self.take_back(), self._runs
        self._runs, self._next = (), None
        return Interrupted(self.ended(), unstarted, running)

    def surplus(self) -> Sequence[Delivery]:
        return ()

    def wait(self, timeout: float) -> None:
        """The clock is set by the simulation."""

    def close(self) -> None:
        """Nothing is left behind."""
