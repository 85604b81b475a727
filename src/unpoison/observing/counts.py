"""What has become of the messages of one source, counted as its consumer reports it."""

import threading
from collections.abc import Mapping

from unpoison.control.breaker import CircuitState
from unpoison.model import verdict
from unpoison.model.verdict import ErrorClassification
from unpoison.reporting.observer import Event

MOST_DEPENDENCIES = 20
"""Dependencies of one source that are shown by name. It may talk to thousands of hosts, and each name is a series for ever."""
OTHER = "other"

_RANKS = {CircuitState.CLOSED: 0, CircuitState.RAMP: 1, CircuitState.OPEN: 2}


class SourceCounts:
    """Written by the thread of the consumer alone, so nothing is locked. All that can be counted is there from the start, with 0:
    the first dead letter is to be an increase that a rule can see."""

    def __init__(self) -> None:
        self.handled = self.discarded = self.retries = 0
        self.pills = dict.fromkeys(ErrorClassification, 0)
        self.failures = dict.fromkeys(ErrorClassification, 0)
        self.is_broker_lost = False

    def failed(self, event: Event) -> None:
        kind, is_start = event.ruling.classification, event.failure.started
        match event.ruling.verdict:
            case verdict.Discard():
                self.discarded += 1
                return
            case verdict.Retry():
                self.retries += 1
            case verdict.DeadLetter():
                self.pills[kind] += 1
        self.failures[kind] += is_start


class Dependencies:
    """The dependencies of one source that have been down, each with its state. The first ones have names, the rest is one."""

    def __init__(self, depends_on: str | None) -> None:
        self._lock = threading.Lock()
        self._named: dict[str, None] = {} if depends_on is None else {depends_on: None}

    def is_down(self, dependency: str) -> None:
        if dependency in self._named:
            return
        with self._lock:
            if len(self._named) < MOST_DEPENDENCIES:
                self._named[dependency] = None

    def states(self, circuits: Mapping[str, CircuitState]) -> dict[str, int]:
        """0 closed, 1 recovering, 2 open; of those without a name the worst."""
        for dependency, state in circuits.items():
            if state is not CircuitState.CLOSED:
                self.is_down(dependency)
        named = list(self._named)
        found = {each: _RANKS[circuits.get(each, CircuitState.CLOSED)] for each in named}
        if len(named) == MOST_DEPENDENCIES:
            others = [_RANKS[state] for each, state in circuits.items() if each not in self._named]
            found[OTHER] = max([*others, found.get(OTHER, 0)])
        return found
