"""One consumer as other threads see it, from before it starts to after its end."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.observing.health import Phase, SourceHealth
from unpoison.reporting.consumer_state import ConsumerState
from unpoison.reporting.numbers import Durations, SourceNumbers

if TYPE_CHECKING:
    from unpoison.flow.consumer import Consumer


TRIES = 3
"""Looks at a consumer, which goes on meanwhile."""


class SourceView:
    """A `ConsumerView`. `is_observed`: somebody asks how long handlers run."""

    def __init__(
        self, settings: Settings, options: ConsumerOptions, imported_at: Callable[[], float], *, is_observed: bool
    ) -> None:
        self.url, self.source, self.store = settings.url, options.source, settings.store or ""
        self.depends_on = options.control.depends_on
        self.numbers = SourceNumbers(Durations() if is_observed else None)
        self.health = _health(settings, options, imported_at)
        self._consumer: Consumer | None = None

    def begin(self, consumer: "Consumer") -> None:
        self._consumer = consumer

    def end(self) -> None:
        self.health.enters(Phase.ENDED)

    def is_open(self) -> bool:
        return self._consumer is not None

    def is_running(self) -> bool:
        return self._consumer is not None and self.health.is_turning()

    def state(self) -> ConsumerState | None:
        for _ in range(TRIES):
            with suppress(AttributeError, RuntimeError):  # something was replaced or changed its size while it was looked at
                return None if self._consumer is None else self._consumer.state()
        return None


def _health(settings: Settings, options: ConsumerOptions, imported_at: Callable[[], float]) -> SourceHealth:
    handlers = 0.0
    if options.isolation == "inline":  # they run within a turn
        handlers = float("inf") if options.timeout is None else options.timeout
    return SourceHealth(options.name, settings.start_timeout, handlers, imported_at)
