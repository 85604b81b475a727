"""How do simulated workers run messages and die?

The workers of one source in one consumer process. What they leave when they die is judged by the real rules.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tests.unit.simulated_messages import FAILURES, HURT, SLOW, End
from tests.unit.simulated_truth import DONE, Life
from tests.unit.simulated_truth import HURT as WAS_HURT
from unpoison.model.failure import Crash, Failure
from unpoison.model.message import Delivery
from unpoison.workers.assignments import PostMortem, Running
from unpoison.workers.deaths import TOGETHER, Death, judge_death, may_be_one_event
from unpoison.workers.interface import Ended, Interrupted, Result

CRASHES = {
    End.SEGFAULT: Crash(signal="SIGSEGV"),
    End.KILL_WORKER: Crash(signal="SIGKILL"),
    End.KILL_WORKERS: Crash(signal="SIGKILL"),
    End.KILL_NEIGHBOUR: Crash(exit_code=3),
    End.LIE: Crash(signal="SIGABRT"),
    End.HANG: Crash(signal="SIGKILL"),
}
KILLED = Crash(signal="SIGKILL")


class Vanished(BaseException):
    """A consumer process was killed. No Exception: nothing in the consumer may catch it."""


@dataclass(eq=False, slots=True)
class Task:
    """A handler that is running."""

    running: Running
    life: Life
    end: End
    left: int
    is_orphan: bool = False
    """Its consumer lost the message while it ran: what comes of this run reaches nobody."""

    @property
    def delivery(self) -> Delivery:
        return self.running.delivery

    def came_to(self, how: str) -> None:
        if not self.is_orphan:
            self.life.how = how


@dataclass(eq=False, slots=True)
class Worker:
    lanes: int
    is_solo: bool = False
    was_checked: bool = False
    """And found broken: it gets nothing more."""
    was_used: bool = False
    is_damaged: bool = False
    is_broken: bool = False
    """By an earlier message, as the next check of it will find."""
    waiting: deque[Delivery] = field(default_factory=deque)
    tasks: list[Task] = field(default_factory=list)

    def held(self) -> int:
        return len(self.waiting) + len(self.tasks)


@dataclass(frozen=True, slots=True)
class Staff:
    """How many workers serve a source, and what each takes. `kind` is "batch", "threads" or "async"."""

    kind: str
    workers: int
    lanes: int
    batch: int


class Floor(Protocol):
    """The consumer process around the workers."""

    rng: random.Random
    now: float
    deaths: list[Death]
    crews: Sequence["Crew"]

    def begin(self, crew: "Crew", worker: Worker, delivery: Delivery) -> Task:
        """The start of a handler: checked against the promises and noted."""

    def note(self, delivery: Delivery, text: str) -> None:
        """For the trace."""

    def may_be_killed(self) -> None:
        """Raises Vanished if this is where the process is killed."""


class Crew:
    """The workers of one source in one process, as its consumer uses them (`Workers`)."""

    def __init__(self, floor: Floor, staff: Staff) -> None:
        self.floor, self.staff = floor, staff
        self.queue: deque[Delivery] = deque()
        self.fresh: deque[Delivery] = deque()
        self.workers: list[Worker] = []
        self.unjudged: list[Death] = []
        self.results: list[Result] = []
        self.collected: list[Result] = []
        """What the consumer was given last, to be settled next; so too what it cut off."""
        self.cut_off: Sequence[Delivery] = ()

    def room(self) -> int:
        return max(0, self.staff.workers * self.staff.batch * 2 - self.running())

    def running(self) -> int:
        held = sum([len(worker.waiting) + len(worker.tasks) for worker in self.workers])
        return held + len(self.queue) + len(self.fresh) + len(self.unjudged) + len(self.results)

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        self.floor.may_be_killed()
        self.queue.extend(deliveries)
        self.fresh.extend(fresh)

    def ended(self) -> Sequence[Result]:
        self.floor.may_be_killed()
        self.dispatch()
        self.judge_deaths()
        self.collected, self.results = self.results, []
        return self.collected

    def wait(self, timeout: float) -> None:
        raise AssertionError("nothing waits here: the world goes on when all have made their step")

    def surplus(self) -> Sequence[Delivery]:
        return ()

    def close(self) -> None:
        """Nothing is left behind."""

    def dispatch(self) -> None:
        busy = sum([worker.held() > 0 for worker in self.workers])
        while self.fresh and busy < self.staff.workers:
            self.workers.append(Worker(1, is_solo=True, waiting=deque([self.fresh.popleft()])))
            busy += 1
        if self.fresh or not self.queue:
            return
        for worker in [each for each in self.workers if not (each.is_solo or each.was_checked)]:
            if worker.held() or busy < self.staff.workers:
                busy += not worker.held()
                self._give(worker)
        while self.queue and busy < self.staff.workers:
            self.workers.append(Worker(self.staff.lanes))
            self._give(self.workers[-1])
            busy += 1

    def _give(self, worker: Worker) -> None:
        while self.queue and worker.held() < max(self.staff.batch, worker.lanes):
            worker.waiting.append(self.queue.popleft())

    def advance(self) -> None:
        """One tick for every worker. Raises Vanished if a handler takes the process down."""
        for worker in list(self.workers):
            if worker.is_damaged and worker.tasks and worker in self.workers and self.floor.rng.random() < 0.4:
                self.die(worker, CRASHES[End.SEGFAULT], self.floor.rng.choice(worker.tasks), why="was hit")
            for task in list(worker.tasks):
                task.left -= 1
                if task.left <= 0 and worker in self.workers:
                    self._end(worker, task)
            if worker not in self.workers:
                continue
            while worker.waiting and len(worker.tasks) < worker.lanes and not worker.was_checked:
                worker.tasks.append(self.floor.begin(self, worker, worker.waiting.popleft()))
                worker.was_used = True

    def _end(self, worker: Worker, task: Task) -> None:
        rng, end = self.floor.rng, task.end
        task.came_to(end.value)
        self.floor.note(task.delivery, end.value)
        if end is End.KILL_WITH_PARTNER:
            partner = task.life.partner
            all_tasks = [each for crew in self.floor.crews for worker in crew.workers for each in worker.tasks]
            end = End.KILL_CONSUMER if any(each.life is partner for each in all_tasks) else End.DONE
        if end is End.KILL_CONSUMER:
            raise Vanished
        if end in CRASHES:
            others = [(crew, each) for crew in self.floor.crews for each in crew.workers if each is not worker and each.tasks]
            if end is End.KILL_NEIGHBOUR and others:
                others = [rng.choice(others)]
            if end in (End.KILL_WORKERS, End.KILL_NEIGHBOUR):
                for crew, other in others:
                    crew.die(other, KILLED, rng.choice(other.tasks), why="was taken down")
            self.die(worker, CRASHES[end], task, late=end is End.HANG, sound=end is not End.LIE)
            return
        worker.tasks.remove(task)
        self.results.append(Ended([task.delivery], self._failures(worker, task, end), in_used_worker=not worker.is_solo))
        worker.is_damaged = worker.is_damaged or end is End.DAMAGE
        worker.is_broken = worker.is_broken or end is End.BREAK
        if worker.is_solo or (worker.is_broken and not worker.tasks and self._is_checked(worker)):
            self.queue.extendleft(reversed(worker.waiting))
            self.workers.remove(worker)

    def _failures(self, worker: Worker, task: Task, end: End) -> dict[int, Failure]:
        """A check after each failure says whether the worker is broken; in a broken one anybody may fail."""
        failure = FAILURES.get(end)
        if worker.is_broken and end.value in DONE and self.floor.rng.random() < 0.5:
            failure = HURT
            task.came_to(WAS_HURT)
        if failure is None:
            return {}
        if worker.is_broken:
            worker.was_checked = True
            failure = msgspec.structs.replace(failure, worker_damage=HURT.worker_damage)
        return {0: failure}

    def _is_checked(self, worker: Worker) -> bool:
        """After a failure, and when a batch is over: here at the latest when nothing waits."""
        return worker.was_checked or not worker.waiting

    def die(
        self,
        worker: Worker,
        crash: Crash,
        stepping: Task,
        *,
        late: bool = False,
        sound: bool = True,
        mistaken: bool = False,
        why: str = "died",
    ) -> None:
        """`stepping` is the one that really did it, or that was caught in the middle of a step.

        `late` says that it was ended for being over its time limit, `mistaken` that one before it was and had just ended.
        """
        for task in worker.tasks:
            if task is not stepping:
                task.came_to("was taken down")
            elif not late:
                task.came_to(why)
            self.floor.note(task.delivery, f"{task.life.how}: its worker is dead ({crash.signal or crash.exit_code})")
        running = [task.running for task in worker.tasks]
        unstarted = list(worker.waiting)
        if not sound and self.staff.kind == "batch":
            running, unstarted = [*running, *(Running(delivery, 0) for delivery in unstarted)], []
        named = self._culprit(worker, stepping) if sound else self.floor.rng.choice(running)  # marks that lie name anyone
        post_mortem = PostMortem(Ended([]), running, unstarted, named, sound)
        (self.fresh if worker.is_solo else self.queue).extendleft(reversed(unstarted))
        self.workers.remove(worker)
        if running or not sound:
            death = Death(self.floor.now, post_mortem, crash, stepping.running if late else None, worker.is_solo, mistaken)
            self.unjudged.append(death)
            self.floor.deaths.append(death)

    def _culprit(self, worker: Worker, stepping: Task) -> Running | None:
        match self.staff.kind:
            case "batch":
                return worker.tasks[0].running
            case "threads":
                return worker.tasks[0].running if len(worker.tasks) == 1 else None
            case _:
                return stepping.running if self.floor.rng.random() < 0.7 else None  # else it died between steps

    def judge_deaths(self) -> None:
        for death in list(self.unjudged):
            if not death.is_ambiguous or self.floor.now - death.at > TOGETHER:
                self.unjudged.remove(death)
                together = may_be_one_event(death, self.floor.deaths)
                self.results += judge_death(death, together=together)

    def take_back(self) -> Sequence[Delivery]:
        taken = [*self.fresh, *self.queue, *(each for worker in self.workers for each in worker.waiting)]
        self.fresh.clear()
        self.queue.clear()
        for worker in self.workers:
            worker.waiting.clear()
        self.cut_off = ()
        return taken

    def interrupt(self) -> Interrupted:
        unstarted = self.take_back()
        running = [one.delivery for death in self.unjudged for one in death.post_mortem.running]
        running += [task.delivery for worker in self.workers for task in worker.tasks]
        self.collected, self.results = self.results, []
        self.cut_off = running
        self.workers.clear()
        self.unjudged.clear()
        return Interrupted(self.collected, unstarted, running)


def duration(rng: random.Random, life: Life, end: End) -> int:
    return SLOW + 1 if end is End.HANG else rng.randint(*life.behaviour.takes)
