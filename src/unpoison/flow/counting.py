"""How many messages did a consumer start, and how many came back from one that had died with them?

Nothing here is done for a message that was never tried: those are counted by batch.
"""

from collections.abc import Iterable, Sequence

from unpoison.model.backoff import Limits
from unpoison.model.message import Counters, Delivery
from unpoison.reporting.numbers import SourceNumbers
from unpoison.workers.interface import Bystanders, Ended, Interrupted, Result

MOST_KNOWN = 10_000
"""Messages that are remembered: one that came back is counted once, however often it is retried after that."""


class StartCounter:
    """Keeps the numbers of one source."""

    def __init__(self, numbers: SourceNumbers, limits: Limits) -> None:
        self._numbers, self._limit = numbers, limits.highest
        self._known: dict[str, tuple[int, int]] = {}
        """By message that came back: how often it was lost with others, and how often alone."""

    def fetched(self, deliveries: Iterable[Delivery]) -> None:
        for each in deliveries:
            if each.returned:
                self._came_back(each.id, each.counters)

    def starting(self, deliveries: Iterable[Delivery]) -> None:
        """Some of these have failed before, and all of them start now."""
        if self._limit is not None:
            self._numbers.over_limit += sum(each.counters.charged >= self._limit for each in deliveries)

    def ended(self, results: Sequence[Result]) -> Sequence[Result]:
        """Count these, and pass them on."""
        for result in results:
            self._numbers.starts += len(result.deliveries)
            if isinstance(result, Bystanders):
                self._numbers.recovered += len(result.deliveries)
                for each in result.deliveries:
                    self._know_loss(each)
            elif result.failures:
                self._count_failures(result)
        return results

    def interrupted(self, cut: Interrupted) -> None:
        """What a hard stop leaves."""
        self.ended(cut.ended)
        self._numbers.starts += len(cut.running)

    def _count_failures(self, ended: Ended) -> None:
        for index, failure in ended.failures.items():
            self._numbers.starts -= not failure.started
            if failure.blames_process or failure.worker_damage:
                self._know_loss(ended.deliveries[index])  # it may be kept as one that was lost; it is counted as a failure

    def _came_back(self, message: str, counters: Counters) -> None:
        known_vanished, known_losses = self._known.get(message, (0, 0))
        # One that runs alone was counted before it was set aside for that.
        has_vanished = counters.vanished > known_vanished and not counters.alone
        if has_vanished or counters.losses > known_losses:
            self._numbers.recovered += 1
            self._know(message, max(counters.vanished, known_vanished), max(counters.losses, known_losses))

    def _know_loss(self, delivery: Delivery) -> None:
        self._know(delivery.id, min(2, delivery.counters.vanished + 1), delivery.counters.losses)

    def _know(self, message: str, vanished: int, losses: int) -> None:
        if len(self._known) >= MOST_KNOWN and message not in self._known:
            del self._known[next(iter(self._known))]
        self._known[message] = vanished, losses
