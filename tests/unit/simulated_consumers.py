"""How do simulated consumer processes go through the flow, and where can they be killed in it?"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.unit.simulated_truth import Life
from tests.unit.simulated_workers import Crew, Staff, Task, Vanished, Worker, duration
from unpoison.brokers.memory import MemoryBroker
from unpoison.decide import attempts
from unpoison.errors import OwnershipLost
from unpoison.flow.settling import GivenUp, NewSuspects, NotStarted, SettlementBuilder
from unpoison.flow.suspects import ExclusiveRun
from unpoison.model.backoff import Limits
from unpoison.model.message import Delivery
from unpoison.port.broker import Settlement
from unpoison.workers.assignments import Running
from unpoison.workers.deaths import Death
from unpoison.workers.interface import Result


class Surroundings(Protocol):
    """What a process is in: the clock, the broker, the truth."""

    rng: random.Random
    now: float
    limits: Limits
    staff: Staff
    sources: Sequence[str]
    lives: dict[str, Life]
    starts_alone: int

    def broker(self) -> MemoryBroker:
        """A connection of its own."""

    def lose_what_is_held(self, broker: MemoryBroker, why: str) -> None:
        """The owner of these is gone: the broker hands them out again."""

    def settled(self, ended: Sequence[Result | NotStarted], settlement: Settlement) -> None:
        """The broker has confirmed this."""

    def released(self, cut_off: Sequence[Delivery], settlement: Settlement) -> None:
        """The broker has confirmed what a planned stop handed back, these after it had cut them off."""

    def note(self, message: str, text: str) -> None:
        """For the trace."""


class Loop:
    """The consumer of one source in one process: the flow of `Consumer.turn` and `_run_suspect`, one step at a time."""

    def __init__(self, process: "Process", source: str) -> None:
        self.process, self.world, self.source = process, process.world, source
        self.broker = self.world.broker()
        self.queue = self.broker.store.queue(source)
        self.crew = Crew(process, self.world.staff)
        self.judge = SettlementBuilder(self.world.limits, process.name, None, lambda: self.world.now)
        self.fetched: Sequence[Delivery] = ()
        self.suspect: Delivery | None = None
        self.is_asking = self.is_stale = self.is_over = False
        process.alone.join(self, lambda: None)

    def has_nothing_to_do(self) -> bool:
        """A turn would change nothing. Only saves time."""
        queue = self.queue
        due = queue.delayed and queue.delayed[0][0] <= self.world.now
        waiting = queue.ready or queue.suspects or due
        return not (waiting or self.fetched or self.is_asking or self.process.grace_ends or self.crew.running())

    def steps(self) -> Sequence[Callable[[], None]]:
        """What one turn does, in order. Between any two of these the process may be killed."""
        steps = [self._admit, self._start, self._settle]
        if self.process.grace_ends is not None:
            return [*steps, self._drain]
        return [*steps, self._run_suspect] if self.suspect else [self._fetch, *steps, self._look_for_suspect]

    def _fetch(self) -> None:
        room = self.crew.room()
        if not room or self.fetched or not self.process.alone.enter(self):
            return
        if self.is_stale:
            self._give_up_everything()
        self.fetched = self.broker.fetch(self.source, room)
        for delivery in self.fetched:
            self.world.note(delivery.id, f"fetched by {self.process.name} with {_short(delivery)}")

    def _admit(self) -> None:
        aside = []
        for delivery in self.fetched:
            match attempts.admit(delivery.counters, self.world.limits):
                case attempts.Run():
                    self.crew.queue.append(delivery)
                case attempts.RunFresh():
                    self.crew.fresh.append(delivery)
                case attempts.SetAside():
                    aside.append(delivery)
                case attempts.GiveUp(failure):
                    self.crew.results.append(GivenUp([delivery], failure))
        if aside:
            self.crew.results.append(NewSuspects(aside))
        self.fetched = ()

    def _start(self) -> None:
        self.crew.dispatch()
        self.crew.judge_deaths()

    def _settle(self) -> None:
        if self.crew.results:
            self._settle_these(self.crew.results)
            self.crew.results = []
        if not self.crew.running() and not self.fetched:
            self.process.alone.went_idle(self)

    def _settle_these(self, ended: Sequence[Result | NotStarted]) -> None:
        judged = self.judge(ended)
        try:
            self.broker.settle(judged.settlement)
        except OwnershipLost:
            self._give_up_everything()
        else:
            self.world.settled(ended, judged.settlement)

    def lose_ownership(self) -> None:
        """What it holds is given to others. It goes on with it until it wants something of the broker."""
        self.is_stale = True
        for worker in self.crew.workers:
            for task in worker.tasks:
                task.is_orphan = True

    def _give_up_everything(self) -> None:
        self.crew.interrupt()
        self.broker, self.is_stale = self.world.broker(), False

    def _look_for_suspect(self) -> None:
        if self.world.rng.random() < 0.3:
            return
        if not self.broker.has_suspect(self.source):
            if self.is_asking:
                self._stop_asking()
            return
        self.is_asking = True
        if not self.process.alone.ask(self):
            return
        if self.is_stale:
            self._give_up_everything()
        self.suspect = self.broker.take_suspect(self.source, self.process.name)
        if self.suspect is None:
            self._stop_asking()
            return
        self.world.note(self.suspect.id, f"taken by {self.process.name} to run alone, with {_short(self.suspect)}")
        match attempts.admit_alone(self.suspect.counters, self.world.limits):
            case attempts.GiveUp(failure):
                self.crew.results.append(GivenUp([self.suspect], failure))
            case attempts.RunFresh():
                self.crew.fresh.append(self.suspect)

    def _run_suspect(self) -> None:
        if not self.crew.running():
            self.suspect = None
            self._stop_asking()

    def _stop_asking(self) -> None:
        self.is_asking = False
        self.process.alone.done(self)

    def _drain(self) -> None:
        self._release(self.crew.take_back() if self.suspect is None else ())
        assert self.process.grace_ends is not None
        if self.crew.running() and self.world.now < self.process.grace_ends:
            return
        cut = self.crew.interrupt()
        self._settle_these([ended for ended in cut.ended if ended.deliveries])
        self._release(cut.unstarted, cut.running)
        for owner, delivery in self.queue.held.values():
            self.world.lives[delivery.id].check(owner is not self.broker, "a planned stop left it behind")
        self.broker.close()
        self.process.alone.leave(self)
        self.is_over = True

    def _release(self, unstarted: Sequence[Delivery], cut_off: Sequence[Delivery] = ()) -> None:
        if not (unstarted or cut_off):
            return
        judged = self.judge.released(unstarted, cut_off)
        try:
            self.broker.settle(judged.settlement)
        except OwnershipLost:
            self._give_up_everything()
        else:
            self.world.released(cut_off, judged.settlement)


@dataclass(eq=False)
class Process:
    """A consumer process, with the consumers of all sources in it."""

    world: Surroundings
    name: str
    alone: ExclusiveRun = field(default_factory=ExclusiveRun)
    deaths: list[Death] = field(default_factory=list)
    grace_ends: float | None = None
    loops: list[Loop] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = self.world.rng
        self.loops = [Loop(self, source) for source in self.world.sources]
        self.crews = [loop.crew for loop in self.loops]

    @property
    def now(self) -> float:
        return self.world.now

    def note(self, delivery: Delivery, text: str) -> None:
        self.world.note(delivery.id, text)

    def tick(self, *, killed: bool) -> bool:
        """False once the process is gone. If it is killed from outside, then between any two steps."""
        try:
            for crew in self.crews:
                crew.advance()
            for loop in self.loops:
                if loop.is_over or (loop.has_nothing_to_do() and not killed):
                    continue
                steps = loop.steps()
                for step in steps[: self.rng.randrange(len(steps))] if killed else steps:
                    step()
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
        if not loop.is_stale:
            life.check(alone == life.must_be_alone, "it ran alone without need" if alone else "a suspect ran in company")
            life.check(is_fresh == (alone or life.needs_fresh), f"fresh worker: {is_fresh}, needed: {not is_fresh}")
            _, on_record = loop.queue.held[delivery.receipt]
            life.check(on_record.counters.losses == delivery.counters.losses + alone, "a suspect's start is not on record")
        self.world.starts_alone += alone
        end = life.begin(delivery, is_fresh=is_fresh, is_stale=loop.is_stale)
        return Task(Running(delivery, round(self.now * 1e9) + 1), life, end, duration(self.rng, life, end), loop.is_stale)


def _short(delivery: Delivery) -> str:
    counters = delivery.counters
    flags = [name for name in ("alone", "fresh") if getattr(counters, name)]
    return ", ".join([f"attempts {counters.attempts}", f"vanished {counters.vanished}", f"losses {counters.losses}", *flags])
