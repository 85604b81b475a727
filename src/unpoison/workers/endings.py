"""How do results get from the threads that run handlers to the consumer?"""

from collections import deque
from collections.abc import Sequence

from unpoison.failure import Failure
from unpoison.message import Delivery
from unpoison.workers import Ended


class Endings:
    """Filled by any number of threads, emptied by the consumer."""

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
