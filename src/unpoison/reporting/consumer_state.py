"""How a consumer is at this moment, for those who look at it from another thread: metrics, health checks."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

import msgspec

from unpoison.control.breaker import CircuitState
from unpoison.reporting.numbers import SourceNumbers


class ConsumerState(msgspec.Struct, frozen=True):
    """One look at a consumer. Its parts need not be of the same instant."""

    in_flight: int
    """Messages in hand."""
    pauses: AbstractSet[str]
    """Why the source is paused: outage, admission, operator."""
    circuits: Mapping[str, CircuitState]
    """By dependency. Those that failed lately are in it, whether down or not."""
    budget_left: float | None
    """Of the retry budget, 1 unused and 0 used up; None where it is switched off."""
    put_off: int
    """Retries put off so far because the budget was used up."""
    is_throttled: bool
    is_dlq_writable: bool
    is_store_up: bool | None
    """None without a store."""
    retention_used: float | None
    """How much of the time for which the broker keeps it a message had waited that was looked at; None where none waits long."""


class ConsumerView(Protocol):
    """A source of this process, from before its consumer starts to after its end. Safe to use from any thread."""

    url: str
    source: str
    store: str
    """The URL of the store of its app; empty without one."""
    depends_on: str | None
    numbers: SourceNumbers

    def is_open(self) -> bool:
        """Whether the consumer has been at its broker: what it needs there exists."""

    def is_running(self) -> bool:
        """Whether the consumer turns."""

    def state(self) -> ConsumerState | None:
        """None before the consumer has started."""
