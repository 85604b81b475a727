"""How are many sides measured on a machine that others use as well, in a run that may be interrupted?

Broker by broker, in rounds: each round runs every side once, forwards and backwards by turns. A run during which others took a
good part of the machine is repeated, and the quietest try is kept. Whatever was measured is kept at once; a run that was
interrupted goes on where it was, on the same day.
"""

import datetime
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from bench.harness import machine
from bench.harness.child import scratch
from bench.harness.rounds import Rounds
from bench.peers import baselines, brokers, draining, results, workers
from bench.peers.brokers import Broker
from bench.peers.results import Cell, Drained
from bench.peers.setups import known
from bench.peers.workers import WorkerFailed

TRIES = 2
Side = Callable[[], Cell]
Tell = Callable[[str], None]


class Asked(msgspec.Struct, frozen=True):
    """What is to be measured. With a part of the sides, or of the messages, nothing is kept."""

    rounds: int = 3
    patience: float = 0.0
    share: float = 1.0
    sides: Sequence[str] = ()

    @property
    def is_kept(self) -> bool:
        return self.share == 1.0 and not self.sides


def sides_of(broker: Broker, asked: Asked) -> dict[str, Side]:
    """The loop by hand first: ratios are to it."""
    found: dict[str, Side] = {which: partial(baselines.drained, which, broker, asked.share) for which in ("raw", "unpoison")}
    for setup in known().drain:
        if setup.broker == broker.name:
            found[setup.name] = partial(draining.drained, setup, broker, max(20, round(setup.messages * asked.share)))
    return {name: side for name, side in found.items() if not asked.sides or name in asked.sides}


def measured(name: str, asked: Asked, unfinished: Path, tell: Tell) -> Drained:
    """All rounds on one broker. What an interrupted run has left in `unfinished` is not measured again."""
    for setup in known().drain:
        if setup.broker == name and (not asked.sides or setup.name in asked.sides):
            workers.make(setup.peer, tell)
    with brokers.running(name) as broker:
        found = results.read(unfinished, Drained) if asked.is_kept else None
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        if found is None or (found.version, found.day) != (broker.version, today):
            found = Drained(broker.version, today, machine.described(scratch()), asked.rounds, {})
        sides = sides_of(broker, asked)
        for number in range(asked.rounds):
            for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
                if len(found.cells.get(side, ())) <= number and side not in found.failed:
                    _take(found, side, sides[side], f"{name}, round {number + 1} of {asked.rounds}, {side}", asked, tell)
                    if asked.is_kept:
                        results.write(unfinished, found)
    order = [side for side in sides if side in found.cells]
    found.cells = {side: found.cells[side] for side in order}
    return found


def _take(found: Drained, name: str, side: Side, label: str, asked: Asked, tell: Tell) -> None:
    """One cell more, or the reason why there is none."""
    for attempt in range(TRIES):
        try:
            rounds = Rounds(1, lambda text: tell(label + text.removeprefix("round 1 of 1")), asked.patience)
            [cell] = rounds.interleaved({name: side})[name]
        except WorkerFailed as error:
            tell(f"{label}: failed\n{error}")
            if attempt == TRIES - 1:
                found.failed[name] = str(error).partition("\n")[0]
                found.cells.pop(name, None)
        else:
            kept = msgspec.structs.replace(cell, disturbed=bool(rounds.disturbed))
            found.cells.setdefault(name, []).append(kept)
            tell(f"{label}: {told(kept)}")
            return


def told(cell: Cell) -> str:
    left = f", {cell.left:,} left unacknowledged" if cell.left else ""
    noise = ", disturbed" if cell.disturbed else ""
    each = 1e6 / cell.messages
    return (
        f"{cell.rate:,.0f} messages/s in {cell.seconds:.1f} s, CPU per message {cell.cpu * each:,.1f} µs and "
        f"{cell.server_cpu * each:,.1f} µs of the server{left}{noise}"
    )
