"""How far are the two consumers? Read from the broker, the DLQ, the handlers' ledger, the consumer's log and the spool."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unpoison.brokers import dead_letters_for
from unpoison.cli.demo.plain_loop import order_of
from unpoison.cli.demo.poison import Traffic, number_of
from unpoison.cli.demo.shop import Entry, Tail, entry_of
from unpoison.cli.demo.stage import SOURCE, Stage, Supervised
from unpoison.deadletters.manager import DLQManager
from unpoison.model.dead_letter import DeadLetter

DEATHS = ("unpoison.WorkerDied", "unpoison.Timeout")
"""Failures that cost a worker process."""


@dataclass(frozen=True, slots=True)
class PlainLoop:
    """What has become of the plain loop so far. `at` is the order that is first in its line."""

    done: int
    restarts: int
    is_down: bool
    at: int | None
    idle_for: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where all orders are at one moment. `states` says it of each poisoned one, in a word."""

    seconds: float
    done: int
    retrying: int
    dead: int
    discarded: int
    waiting: int
    restarts: int
    worker_deaths: int
    states: Mapping[int, str]
    letters: Mapping[int, DeadLetter]
    plain: PlainLoop


class Observer:
    """Looks at both consumers from outside. What it has read of their ledgers is kept for the account at the end."""

    def __init__(self, stage: Stage, orders: Traffic, consumer: Supervised, plain: Supervised) -> None:
        self._stage, self._orders, self._consumer, self._plain = stage, orders, consumer, plain
        self._began = time.monotonic()
        self._dlq = dead_letters_for(stage.url, SOURCE, create=False)
        self._ledger, self._plain_ledger, self._log = Tail(stage.ledger), Tail(stage.plain_ledger), Tail(stage.log)
        self.entries: list[Entry] = []
        self._seen: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.plain_entries: list[Entry] = []
        self.worker_deaths = 0

    def close(self) -> None:
        self._dlq.broker.close()

    def look(self) -> Snapshot:
        self._read()
        depth = self._dlq.broker.depth(SOURCE)
        letters = {number_of(letter.message.id): letter for letter in DLQManager(self._dlq, SOURCE).letters()}
        done = self._seen["done"].keys() - letters.keys()
        discarded = self._seen["discard"].keys() - letters.keys() - done
        starts = self._seen["start"]
        return Snapshot(
            seconds=time.monotonic() - self._began,
            done=len(done),
            retrying=depth.delayed,
            dead=depth.dead,
            discarded=len(discarded),
            waiting=depth.ready + depth.leased,
            restarts=self._consumer.restarts,
            worker_deaths=self.worker_deaths,
            states={number: _state(number, letters, done, discarded, starts[number]) for number in self._orders.poison},
            letters=letters,
            plain=self._look_at_plain(),
        )

    def _read(self) -> None:
        for entry in map(entry_of, self._ledger.lines()):
            self.entries.append(entry)
            self._seen[entry.what][entry.order] += 1
        self.plain_entries += map(entry_of, self._plain_ledger.lines())
        self.worker_deaths += sum(_is_worker_death(line) for line in self._log.lines())

    def _look_at_plain(self) -> PlainLoop:
        line = self._stage.spool.waiting()
        last = self.plain_entries[-1].at if self.plain_entries else time.time()
        return PlainLoop(
            done=len(orders(self.plain_entries, "done") - self._orders.poison.keys()),
            restarts=self._plain.restarts,
            is_down=self._plain.gave_up,
            at=order_of(line[0]) if line else None,
            idle_for=time.time() - last,
        )


def orders(entries: Sequence[Entry], what: str) -> set[int]:
    return {entry.order for entry in entries if entry.what == what}


def _state(number: int, letters: Mapping[int, DeadLetter], done: set[int], discarded: set[int], starts: int) -> str:
    if number in letters:
        return "dead"
    if number in discarded:
        return "discarded"
    if number in done:
        return "healed"
    return f"attempt {starts}" if starts else "waiting"


def _is_worker_death(line: str) -> bool:
    """Whether a line of the consumer's log tells of a message that cost it a worker."""
    try:
        told = json.loads(line)
    except ValueError:  # not the consumer's own words
        return False
    if not isinstance(told, dict) or told.get("event") not in ("retry", "dead"):
        return False
    return any(name in told["message"] for name in DEATHS)
