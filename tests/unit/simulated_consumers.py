"""Drives the real `Consumer` of each source in simulated consumer processes, which can be killed between any two of its calls.

The consumer is the code under test, with its own loop (`Consumer.step`). Its broker and its workers are simulated, the clock is
the world's, and nothing waits.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.unit.simulated_truth import Life
from tests.unit.simulated_workers import Crew, Staff, Task, Vanished, Worker, duration
from unpoison.brokers.memory import MemoryBroker
from unpoison.control.options import NO_CONTROL
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import OwnershipLost
from unpoison.flow.consumer import IDLE, Consumer
from unpoison.flow.settling import NewSuspects
from unpoison.flow.suspects import ExclusiveRun
from unpoison.model.backoff import Limits
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.reporting.report import Report
from unpoison.workers.assignments import Running
from unpoison.workers.deaths import Death
from unpoison.workers.interface import Result


class Surroundings(Protocol):
    """What a process is in: the clock, the broker, the truth."""

    rng: random.Random
    now: float
    url: str
    limits: Limits
    staff: Staff
    sources: Sequence[str]
    lives: dict[str, Life]
    starts_alone: int

    def lose_what_is_held(self, broker: MemoryBroker, why: str) -> None:
        """The owner of these is gone: the broker hands them out again."""

    def settled(self, ended: Sequence[Result | NewSuspects], settlement: Settlement) -> None:
        """The broker has confirmed this."""

    def released(self, cut_off: Sequence[Delivery], settlement: Settlement) -> None:
        """The broker has confirmed what a planned stop handed back, these after it had cut them off."""

    def note(self, message: str, text: str) -> None:
        """For the trace."""


class Connection(MemoryBroker):
    """The broker as one consumer sees it. It tells the world what was settled, and its consumer once that ownership is lost."""

    def __init__(self, loop: "Loop") -> None:
        super().__init__(loop.world.url, clock=lambda: loop.world.now)
        self._loop, self.is_stale = loop, False

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        self._tell_loss()
        fetched = super().fetch(source, limit)
        for delivery in fetched:
            self._loop.note(delivery, f"fetched by {self._loop.process.name} with {_short(delivery)}")
        self._loop.process.may_be_killed()
        return fetched

    def has_suspect(self, source: str) -> bool:
        self._loop.process.may_be_killed()
        return super().has_suspect(source)

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        self._tell_loss()
        suspect = super().take_suspect(source, by)
        if suspect is not None:
            self._loop.note(suspect, f"taken by {by} to run alone, with {_short(suspect)}")
        self._loop.process.may_be_killed()
        return suspect

    def settle(self, settlement: Settlement) -> Sequence[str]:
        self._loop.process.may_be_killed()
        try:
            letter_ids = super().settle(settlement)
        except OwnershipLost:
            self.is_stale = False
            raise
        self._loop.settled(settlement)
        self._loop.process.may_be_killed()
        return letter_ids

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        self._tell_loss()
        super().extend(deliveries)

    def close(self) -> None:
        if self._loop.is_stopping:
            for owner, delivery in self._loop.queue.held.values():
                self._loop.world.lives[delivery.id].check(owner is not self, "a planned stop left it behind")
        super().close()

    def _tell_loss(self) -> None:
        self._loop.process.may_be_killed()
        if self.is_stale:
            self.is_stale = False
            raise OwnershipLost("other consumers have the messages")


class NoHooks:
    def call(self, event: object, letter_id: str | None = None) -> None:
        """There are none."""

    def close(self) -> None:
        """There are none."""


class Loop:
    """The consumer of one source in one process."""

    def __init__(self, process: "Process", source: str) -> None:
        self.process, self.world = process, process.world
        self.broker = Connection(self)
        self.queue = self.broker.store.queue(source)
        self.crew = Crew(process, self.world.staff)
        self.is_over = self.is_stopping = False
        self._pause = 0.0
        self._consumer = Consumer(
            ConsumerOptions(source, self.world.limits, control=NO_CONTROL),
            self.broker,
            self.crew,
            Report(),
            NoHooks(),
            self._wake,
            exclusive=process.alone,
            name=process.name,
            clock=lambda: self.world.now,
            monotonic=lambda: self.world.now,
        )

    def note(self, delivery: Delivery, text: str) -> None:
        self.world.note(delivery.id, text)

    def _wake(self) -> None:
        self._pause = 0.0

    def stop(self, grace: float) -> None:
        self.is_stopping = True
        self._consumer.stop(grace)

    def step(self) -> None:
        """As far as the consumer gets without waiting, a few rounds at the most."""
        for _ in range(3):
            self._pause = IDLE
            pause = self._consumer.step()
            if pause is None:
                self.is_over = True
                self._consumer._suspects.leave()
                return
            if pause > 0:
                return

    def has_nothing_to_do(self) -> bool:
        """A step would change nothing. Only saves time."""
        queue = self.queue
        due = queue.delayed and queue.delayed[0][0] <= self.world.now
        is_idle = not (queue.ready or queue.suspects or due or self.is_stopping or self.crew.running())
        return is_idle and self._pause > 0

    def lose_ownership(self) -> None:
        """What it holds is given to others. It goes on with it until it wants something of the broker."""
        self.broker.is_stale = True
        for worker in self.crew.workers:
            for task in worker.tasks:
                task.is_orphan = True

    def settled(self, settlement: Settlement) -> None:
        """Tell the world what it was that the broker has stored: results, what a stop handed back, or new suspects."""
        results, cut_off = self.crew.collected, self.crew.cut_off
        handed_back = {kept.delivery.receipt for kept in settlement.kept if kept.counters == kept.delivery.counters}
        moved = [kept.delivery for kept in settlement.kept] + [dead.delivery for dead in settlement.dead]
        receipts = {each.receipt for each in (*settlement.gone, *moved)}
        if receipts == {delivery.receipt for result in results for delivery in result.deliveries}:
            self.crew.collected = []
            self.world.settled(results, settlement)
        elif receipts == handed_back | {delivery.receipt for delivery in cut_off}:
            self.crew.cut_off = []
            self.world.released(cut_off, settlement)
        else:
            aside = [kept.delivery for kept in settlement.kept]
            self.world.settled([NewSuspects(aside)] if aside else [], settlement)


@dataclass(eq=False)
class Process:
    """A consumer process, with the consumers of all sources in it."""

    world: Surroundings
    name: str
    alone: ExclusiveRun = field(default_factory=ExclusiveRun)
    deaths: list[Death] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = self.world.rng
        self._calls_left: int | None = None
        self.loops = [Loop(self, source) for source in self.world.sources]
        self.crews = [loop.crew for loop in self.loops]

    @property
    def now(self) -> float:
        return self.world.now

    def note(self, delivery: Delivery, text: str) -> None:
        self.world.note(delivery.id, text)

    def may_be_killed(self) -> None:
        """Called wherever a consumer uses its broker or its workers."""
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left < 0:
                raise Vanished

    def stop(self, grace: float) -> None:
        for loop in self.loops:
            loop.stop(grace)

    def tick(self, *, killed: bool) -> bool:
        """False once the process is gone. If it is killed from outside, then between any two calls of its consumers."""
        self._calls_left = self.rng.randrange(8 * len(self.loops)) if killed else None
        try:
            for crew in self.crews:
                crew.advance()
            for loop in self.loops if self.rng.random() < 0.5 else self.loops[::-1]:  # threads of their own: either may be first
                if not loop.is_over and (killed or not loop.has_nothing_to_do()):
                    loop.step()
            if killed:
                raise Vanished
        except Vanished:
            self._vanish("killed from outside" if killed else "killed by a message")
            return False
        return not all(loop.is_over for loop in self.loops)

    def _vanish(self, why: str) -> None:
        for loop in self.loops:
            if not loop.is_over:
                self.world.lose_what_is_held(loop.broker, f"{self.name} was {why}")

    def begin(self, crew: Crew, worker: Worker, delivery: Delivery) -> Task:
        """Start a handler, after a look at whom this may not disturb."""
        life, loop = self.world.lives[delivery.id], self.loops[self.crews.index(crew)]
        tasks = [task for each in self.crews for other in each.workers for task in other.tasks]
        alone, is_fresh = delivery.counters.alone, worker.is_solo and not worker.was_used
        self.note(delivery, f"starts in {self.name}{' alone' if alone else ' in a fresh worker' if is_fresh else ''}")
        life.check(not (alone and tasks), "a suspect was started beside another message")
        life.check(not any(task.delivery.counters.alone for task in tasks), "it was started beside a suspect")
        if not loop.broker.is_stale:
            life.check(alone == life.must_be_alone, "it ran alone without need" if alone else "a suspect ran in company")
            life.check(is_fresh == (alone or life.needs_fresh), f"fresh worker: {is_fresh}, needed: {not is_fresh}")
            _, on_record = loop.queue.held[delivery.receipt]
            life.check(on_record.counters.losses == delivery.counters.losses + alone, "a suspect's start is not on record")
        self.world.starts_alone += alone
        end = life.begin(delivery, is_fresh=is_fresh, is_stale=loop.broker.is_stale)
        return Task(Running(delivery, round(self.now * 1e9) + 1), life, end, duration(self.rng, life, end), loop.broker.is_stale)


def _short(delivery: Delivery) -> str:
    counters = delivery.counters
    flags = [name for name in ("alone", "fresh") if getattr(counters, name)]
    return ", ".join([f"attempts {counters.attempts}", f"vanished {counters.vanished}", f"losses {counters.losses}", *flags])
