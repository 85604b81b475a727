"""How are several sides measured so that a noisy machine treats them alike?

In rounds: each round runs every side once, forwards and backwards by turns, and begins when the machine is quiet, if that can
be had. A round in which other processes took a good part of the machine is run again, and the quietest try is kept.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from bench.harness import machine

Measured = TypeVar("Measured")

NOISE = 0.3
"""Cores taken by others from which on a round counts as disturbed."""

TRIES = 3
LOOK = 0.5


class Rounds:
    """Runs sides in rounds, and remembers how many they were and how many of them stayed disturbed.

    `patience` is how many seconds each try waits, at most, for the machine to become quiet.
    """

    def __init__(self, count: int, tell: Callable[[str], None], patience: float = 0.0) -> None:
        self.count, self._tell, self._patience = count, tell, patience
        self.ran = self.disturbed = 0

    def interleaved(self, sides: Mapping[str, Callable[[], Measured]], count: int | None = None) -> dict[str, list[Measured]]:
        """What each side measured, round by round."""
        taken: dict[str, list[Measured]] = {label: [] for label in sides}
        rounds = count or self.count
        for number in range(rounds):
            order = list(sides)[:: 1 if number % 2 == 0 else -1]
            measured, others = self._quietest(f"round {number + 1} of {rounds}", order, sides)
            self.ran += 1
            self.disturbed += others >= NOISE
            for label in sides:
                taken[label].append(measured[label])
        return taken

    def _quietest(
        self, name: str, order: list[str], sides: Mapping[str, Callable[[], Measured]]
    ) -> tuple[dict[str, Measured], float]:
        """The try with the fewest cores taken by others, and how many those were."""
        best: dict[str, Measured] = {}
        quietest = float("inf")
        for attempt in range(TRIES):
            again = f", again: {quietest:.1f} cores were taken by others" if attempt else ""
            self._wait_for_quiet(name + again)
            self._tell(name + again)
            look = _Others()
            measured = {label: sides[label]() for label in order}
            others = look.cores()
            if others < quietest:
                quietest, best = others, measured
            if quietest < NOISE:
                break
        return best, quietest

    def _wait_for_quiet(self, name: str) -> None:
        ends = time.monotonic() + self._patience
        while time.monotonic() < ends:
            look = _Others()
            time.sleep(LOOK)
            if look.cores() < NOISE:
                return
            self._tell(f"{name}, waiting for the machine to become quiet")


class _Others:
    """How many cores other processes have used since this was made."""

    def __init__(self) -> None:
        self._began, self._busy, self._ours = time.perf_counter(), machine.busy(), machine.used_by_us()

    def cores(self) -> float:
        others = machine.busy() - self._busy - (machine.used_by_us() - self._ours)
        return others / (time.perf_counter() - self._began)
