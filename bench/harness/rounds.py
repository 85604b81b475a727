"""How are several sides measured so that a noisy machine treats them alike?

In rounds: each round runs every side once, forwards and backwards by turns. A round in which other processes took a good
part of the machine is run again, and the quietest try is kept.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from bench.harness import machine

Measured = TypeVar("Measured")

NOISE = 0.3
"""Cores taken by others from which on a round counts as disturbed."""

TRIES = 3


class Rounds:
    """Runs sides in rounds, and remembers how many of them stayed disturbed."""

    def __init__(self, count: int, tell: Callable[[str], None]) -> None:
        self.count, self._tell = count, tell
        self.disturbed = 0

    def interleaved(self, sides: Mapping[str, Callable[[], Measured]], count: int | None = None) -> dict[str, list[Measured]]:
        """What each side measured, round by round."""
        taken: dict[str, list[Measured]] = {label: [] for label in sides}
        rounds = count or self.count
        for number in range(rounds):
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            for label, measured in self._quietest(number, rounds, order, sides).items():
                taken[label].append(measured)
        return taken

    def _quietest(
        self, number: int, rounds: int, order: list[str], sides: Mapping[str, Callable[[], Measured]]
    ) -> dict[str, Measured]:
        quietest, best = float("inf"), {}
        for attempt in range(TRIES):
            again = f", again: {quietest:.1f} cores were taken by others" if attempt else ""
            self._tell(f"round {number + 1} of {rounds}{again}")
            began, busy, ours = time.perf_counter(), machine.busy(), machine.used_by_us()
            measured = {label: sides[label]() for label in order}
            others = (machine.busy() - busy - (machine.used_by_us() - ours)) / (time.perf_counter() - began)
            if others < quietest:
                quietest, best = others, measured
            if quietest < NOISE:
                return best
        self.disturbed += 1
        return best
