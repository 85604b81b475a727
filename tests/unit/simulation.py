"""Do the rules on counting and blame keep their promises, whatever happens in whatever order?

A world of one seed: messages of every kind, a broker in memory, and consumer processes that are killed, stopped and started
again. Time goes in ticks. What decides is the real code: `Consumer` with all that it uses, deaths, the broker in memory. What is
simulated are workers, processes and messages; what really happened is kept in `simulated_truth`.
"""

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tests.unit.simulated_consumers import Process
from tests.unit.simulated_messages import Behaviour, End, partners, some_behaviour
from tests.unit.simulated_truth import Broken, Life, settled
from tests.unit.simulated_workers import KILLED, Staff
from unpoison.brokers import memory
from unpoison.brokers.memory import MemoryBroker, MemoryDeadLetters
from unpoison.flow.settling import NewSuspects
from unpoison.model.backoff import Backoff, Limits
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Settlement
from unpoison.workers.interface import Result

TICK = 0.03
"""Seconds of the simulated clock. Two deaths that count as one event are at most three ticks apart."""


@dataclass(frozen=True)
class Scene:
    """What a world is made of. Chances are per tick and process."""

    limit: int | None
    staff: Staff
    behaviours: Sequence[Behaviour]
    processes: int = 2
    sources: int = 1
    kill: float = 0.0
    stop: float = 0.0
    steal: float = 0.0
    kill_worker: float = 0.0
    replay: float = 0.0
    troubled: int = 200
    """Ticks after which nothing comes from outside any more."""
    drained: int = 2_000
    """Ticks after which nothing may be left to do."""
    max_age: float | None = None

    @property
    def is_disturbed(self) -> bool:
        """Consumers vanish, or lose what they hold, for reasons that no message has a part in."""
        return self.kill > 0 or self.steal > 0


def some_scene(rng: random.Random) -> Scene:
    kind, limit = rng.choice(["batch", "batch", "threads", "async"]), rng.choice([1, 2, 3, 5, 5, None])
    behaviours = [some_behaviour(rng) for _ in range(rng.randint(3, 14))]
    if rng.random() < 0.15:
        behaviours += partners()
    endless_waits = any(behaviour.then is End.LATER for behaviour in behaviours)
    return Scene(
        limit=limit,
        staff=Staff(kind, rng.randint(1, 3), 1 if kind == "batch" else rng.randint(2, 4), rng.randint(1, 4)),
        behaviours=behaviours,
        processes=rng.randint(1, 3),
        sources=rng.choice([1, 1, 2]),
        kill=rng.choice([0, 0, 0, 0.005, 0.02, 0.08]),
        stop=rng.choice([0, 0, 0.01, 0.05]),
        steal=rng.choice([0, 0, 0, 0.01]),
        kill_worker=rng.choice([0, 0, 0, 0.02]),
        replay=rng.choice([0, 0.02]),
        max_age=6.0 if limit is None or endless_waits else None,
    )


class World:
    """Everything of one seed."""

    def __init__(self, scene: Scene, rng: random.Random, *, traced: bool = False) -> None:
        self.scene, self.rng, self.traced, self.staff = scene, rng, traced, scene.staff
        self.tick, self.now = 0, 0.0
        age = None if scene.max_age is None else timedelta(seconds=scene.max_age)
        self.limits = Limits(scene.limit, age, Backoff.fixed(0.25))
        self.sources = [f"source{n}" for n in range(scene.sources)]
        self.url = f"memory://simulation-{id(self)}"
        self._operator = MemoryBroker(self.url, clock=lambda: self.now)
        self.store = self._operator.store
        self.lives = self._published()
        self.processes: list[Process | None] = [None] * scene.processes
        self._starts_at = [0] * scene.processes
        self._generations = 0
        self.worker_kills = self.starts_alone = 0
        self.letters = Counter[str]()
        self._has_changed = self._is_over = False

    def run(self) -> None:
        """Until everything is done, and then a last look. Raises Broken if a promise does not hold."""
        log = logging.getLogger("unpoison")
        log.disabled = True  # a line for each failure of each message would take half of the time
        try:
            while not self._is_over:
                if self.tick >= self.scene.drained:
                    waiting = [life.id for life in self.lives.values() if life.outcome == "waiting"]
                    raise Broken(f"after {self.tick} ticks these still wait: {waiting}")
                self.tick += 1
                self.now = self.tick * TICK
                if self.tick < self.scene.troubled:
                    self._trouble()
                first = self.rng.randrange(self.scene.processes)
                for seat in range(first - self.scene.processes, first):
                    self._tick(seat)
                if self._has_changed:
                    self._check_nothing_is_lost()
                elif self.tick % 4 == 0:
                    self._skip_idle_time()
            for life in self.lives.values():
                self._check_end(life)
        finally:
            log.disabled = False
            memory._STORES.pop(self.url.removeprefix("memory://"), None)

    def note(self, message: str, text: str) -> None:
        if self.traced:
            self.lives[message].trace.append(f"{self.tick:5}  {text}")

    def lose_what_is_held(self, broker: MemoryBroker, why: str) -> None:
        for queue in self.store.queues.values():
            for owner, delivery in queue.held.values():
                if owner is broker:
                    self.note(delivery.id, why)
                    self.lives[delivery.id].was_lost(alone=delivery.counters.alone)
        MemoryBroker.close(broker)  # the consumer has no part in it
        self._has_changed = True

    def settled(self, ended: Sequence[Result | NewSuspects], settlement: Settlement) -> None:
        self._has_changed = True
        for each in ended:
            settled(self.lives, each, self.now)
        self._check(settlement)

    def released(self, cut_off: Sequence[Delivery], settlement: Settlement) -> None:
        self._has_changed = True
        for delivery in cut_off:
            self.note(delivery.id, "is cut off by a planned stop")
            self.lives[delivery.id].was_cut_off(self.now)
        self._check(settlement)

    def _check(self, settlement: Settlement) -> None:
        for kept in settlement.kept:
            life = self.lives[kept.delivery.id]
            life.check_counters(kept.counters, "after the settle")
            life.how = "waits"
            self.note(life.id, f"is kept for another start, {kept.after:.2f} s from now")
        for dead in settlement.dead:
            life, letter = self.lives[dead.delivery.id], dead.letter
            self.note(life.id, f"dead-lettered as {letter.classification}: {letter.rule}")
            life.check_letter(letter.classification, letter.attempts, letter.rule)
            life.outcome = "dead"
            self.letters[letter.classification] += 1

    def _published(self) -> dict[str, Life]:
        lives = [
            Life(f"m{n}", behaviour, self.scene.limit, self.scene.max_age) for n, behaviour in enumerate(self.scene.behaviours)
        ]
        pair = [life for life in lives if life.behaviour.then is End.KILL_WITH_PARTNER]
        for life, partner in zip(pair, reversed(pair), strict=True):
            life.partner = partner
        for life in lives:
            delay = self.rng.choice([0.0, 0.0, self.rng.random() * 3])
            self._operator.publish([Outgoing(life.id, self.rng.choice(self.sources), b"", delay=delay)])
        return {life.id: life for life in lives}

    def _tick(self, seat: int) -> None:
        process = self.processes[seat]
        if process is None:
            if self.tick >= self._starts_at[seat]:
                self._generations += 1
                self.processes[seat] = Process(self, f"consumer {self._generations}")
            return
        killed = self.tick < self.scene.troubled and self.rng.random() < self.scene.kill
        if not process.tick(killed=killed):
            self.processes[seat] = None
            self._starts_at[seat] = self.tick + self.rng.randint(0, 6)

    def _trouble(self) -> None:
        """What comes from outside, kills excepted: they hit a process in the middle of its work."""
        scene, rng = self.scene, self.rng
        for process in self.processes:
            if process is None:
                continue
            if rng.random() < scene.stop:
                process.stop(rng.choice([0, 5, 30]) * TICK)
            loop = rng.choice(process.loops)
            if rng.random() < scene.steal and not (loop.broker.is_stale or loop.is_over):
                self.lose_what_is_held(loop.broker, f"{process.name} lost what it held")
                loop.lose_ownership()
            busy = [worker for worker in loop.crew.workers if worker.tasks]
            if busy and rng.random() < scene.kill_worker:
                worker = rng.choice(busy)
                mistaken = not worker.is_solo and rng.random() < 0.5
                self.worker_kills += not mistaken
                why = "was taken down" if mistaken else "was hit"
                loop.crew.die(worker, KILLED, rng.choice(worker.tasks), mistaken=mistaken, why=why)
        if scene.replay and rng.random() < scene.replay:
            self._replay()

    def _replay(self) -> None:
        letters = MemoryDeadLetters(self._operator, self.rng.choice(self.sources))
        for letter in letters.browse(limit=2):
            life = self.lives[letter.message.id]
            if life.replays < 2 and letters.replay([letter.id]):
                self.note(life.id, "is replayed by a person")
                life.was_replayed(letter.classification)
                self._has_changed = True

    def _skip_idle_time(self) -> None:
        """If nothing runs and nothing is ready, go on where the next delay ends."""
        queues = self.store.queues.values()
        due = [moment for queue in queues for moment, _, _ in queue.delayed]
        if due and not any(queue.ready or queue.suspects or queue.held for queue in queues):
            self.tick = max(self.tick, int(min(due) / TICK))

    def _check_nothing_is_lost(self) -> None:
        """Each message is in one place, and what is waiting or dead is in the broker."""
        self._has_changed = False
        places = [each.id for queue in self.store.queues.values() for each in (*queue.ready, *queue.suspects)]
        for queue in self.store.queues.values():
            places += [each.id for _, _, each in queue.delayed]
            places += [each.id for _, each in queue.held.values()]
            places += [letter.message.id for letter in queue.dead.values() if letter.state == "dead"]
        there = {life.id for life in self.lives.values() if life.outcome in ("waiting", "dead")}
        if len(places) != len(there) or there.difference(places):
            raise Broken(f"lost: {there.difference(places)}, there too often: {Counter(places) - Counter(there)}")
        waiting = [life for life in self.lives.values() if life.outcome == "waiting"]
        self._is_over = all(self.scene.limit is None and life.behaviour.is_endless for life in waiting)

    def _check_end(self, life: Life) -> None:
        """The innocent are done; where consumers vanish by themselves, an unlucky one may be dead as lost."""
        scene = self.scene
        if not life.behaviour.is_innocent or life.outcome in ("done", "discarded"):
            return
        hits = self.worker_kills + any(End.DAMAGE in each.all_ends for each in scene.behaviours) + (life.losses_in_company >= 2)
        excused = (
            (scene.is_disturbed and life.last_loss == "lost alone")
            or (life.how == "was hit" and hits >= (scene.limit or 0))
            or (scene.max_age is not None and life.how in (End.LATER.value, End.THROTTLED.value, "was cut off"))
        )
        life.check(excused, f"it is innocent and {life.outcome}: it {life.how}, {life.last_loss}")


def run(seed: int, scene: Scene | None = None) -> World:
    """One world. If a promise is broken it is lived through again, for a trace of the message's life."""
    rng = random.Random(seed)
    world = World(scene or some_scene(rng), rng)
    try:
        world.run()
    except Broken as broken:
        raise Broken(explained(seed, scene, broken)) from None
    return world


def explained(seed: int, scene: Scene | None, broken: Broken) -> str:
    rng = random.Random(seed)
    world = World(scene or some_scene(rng), rng, traced=True)
    with contextlib.suppress(Broken):
        world.run()
    life = world.lives.get(str(broken).partition(" ")[0])
    trace = life.trace if life else [f"{each.id}: {line}" for each in world.lives.values() for line in each.trace]
    return "\n".join([f"seed {seed}: {broken}", f"limit {world.scene.limit}, {world.scene}", *trace])
