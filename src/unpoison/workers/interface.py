"""What a consumer asks of its workers, whichever kind they are.

The consumer hands batches of deliveries to its workers and collects the results. Workers never raise for what a handler does:
every bad end is a Failure.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery


@dataclass(frozen=True, slots=True)
class Ended:
    """Messages whose handler has ended. All of them went well but those listed, by index, in `failures`.

    `exceptions` holds the exceptions behind the failures where they still exist, which is in this process only.
    `in_used_worker` says that other messages ran in the same worker process, before or beside these.
    """

    deliveries: Sequence[Delivery]
    failures: Mapping[int, Failure] = field(default_factory=dict)
    exceptions: Mapping[int, BaseException] = field(default_factory=dict)
    in_used_worker: bool = False

    def good(self) -> Sequence[Delivery]:
        """Those whose handler returned."""
        if not self.failures:
            return self.deliveries
        return [delivery for n, delivery in enumerate(self.deliveries) if n not in self.failures]


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Messages that were running when something else brought their worker down: not to blame, but known to have been there."""

    deliveries: Sequence[Delivery]
    must_run_alone: bool
    """One of them may have done it."""


Result: TypeAlias = Ended | Bystanders


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What a hard stop leaves: what had ended by then, what never began, and what was cut off."""

    ended: Sequence[Result] = ()
    unstarted: Sequence[Delivery] = ()
    running: Sequence[Delivery] = ()


class Workers(Protocol):
    """What runs the handler of one source."""

    def room(self) -> int:
        """How many more messages can be handed over now."""

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        """Hand these over, to be started as soon as there is a free place; `fresh` ones first, each in a new worker."""

    def ended(self) -> Sequence[Result]:
        """What has ended since this was last asked. Does not wait."""

    def running(self) -> int:
        """How many messages were handed over and have not been collected."""

    def wait(self, timeout: float) -> None:
        """Sleep until the bell rings or something ends, for at most so long."""

    def surplus(self) -> Sequence[Delivery]:
        """What would have to wait long here, since every worker is busy with a slow message: others may have it."""

    def take_back(self) -> Sequence[Delivery]:
        """Those that were not started: they will not be."""

    def interrupt(self) -> Interrupted:
        """Cut off what is running, where that is possible."""

    def close(self) -> None:
        """End the workers in good order."""


class ResultQueue:
    """Results of handlers that run in threads of this process. Filled by any number of threads, emptied by the consumer."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Delivery, Failure | None, BaseException | None]] = deque()

    def add(self, delivery: Delivery, failure: Failure | None, error: BaseException | None) -> None:
        self._waiting.append((delivery, failure, error))

    def collect(self) -> Sequence[Ended]:
        deliveries: list[Delivery] = []
        failures: dict[int, Failure] = {}
        exceptions: dict[int, BaseException] = {}
        for at in range(len(self._waiting)):
            delivery, failure, error = self._waiting.popleft()
            deliveries.append(delivery)
            if failure is not None:
                failures[at] = failure
            if error is not None:
                exceptions[at] = error
        return [Ended(deliveries, failures, exceptions)] if deliveries else ()
