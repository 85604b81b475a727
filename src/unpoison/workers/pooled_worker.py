"""One place for a worker: its process, its book, and what the pool knows about it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from unpoison.model.message import Delivery
from unpoison.worker import wire
from unpoison.workers.assignments import Assignments, BatchAssignments, LaneAssignments, PostMortem, Running
from unpoison.workers.process import GONE_WITHIN, WorkerProcess


def assignments_for(process: WorkerProcess, consumer: wire.Consumer) -> Assignments:
    options = consumer.options
    if options.is_async or options.threads > 1:
        return LaneAssignments(process.marks, process.tell, shares_a_thread=options.is_async)
    return BatchAssignments(process.marks, process.tell, needs_delivery=consumer.needs_delivery)


@dataclass(eq=False)
class PooledWorker:
    """A worker as the pool sees it. `is_solo` workers run a single message and are then retired.

    `killed_idle`: it was killed while nothing ran in it. A message that it began in that very moment is not to blame.
    """

    process: WorkerProcess
    consumer: wire.Consumer
    assignments: Assignments = field(init=False)
    ready: bool = False
    uses: int = 0
    is_solo: bool = False
    retiring: bool = False
    put_back: set[str] = field(default_factory=set)
    """What its messages changed in it and was put back."""
    failing: set[str] = field(default_factory=set)
    """The messages that failed in it since the last success."""
    problem: str = ""
    late: Running | None = None
    killed_idle: bool = False
    given_at: float = 0.0
    leave_until: float = float("inf")

    def __post_init__(self) -> None:
        self.assignments = assignments_for(self.process, self.consumer)

    @property
    def is_able(self) -> bool:
        """Whether it can be given anything."""
        return self.ready and not self.retiring

    def give(self, deliveries: Sequence[Delivery]) -> bool:
        """False if it did not take them."""
        if not self.assignments.held():
            self.given_at = time.monotonic()
        told = self.assignments.give(deliveries)
        if told is wire.Sent.NEVER:
            self.process.kill()  # its end shows what became of what it has
        return told is wire.Sent.YES

    def is_over(self) -> bool:
        """Whether it has ended, was to leave and takes too long, or can say nothing more and runs nothing."""
        if self.process.is_gone() or time.monotonic() > self.leave_until:
            return True
        return self.process.hung_up and not self.assignments.running()

    def end(self) -> bool:
        """Kill it, unless it is gone already. True once it certainly is."""
        self.killed_idle = self.killed_idle or (not self.process.is_gone() and not self.assignments.running())
        self.process.kill()
        return self.process.is_gone(GONE_WITHIN)

    def post_mortem(self) -> PostMortem:
        """What it leaves, once it is certainly gone. Its last words may still be in the socket."""
        self.end()
        for said in self.process.said():
            if isinstance(said, wire.Failed):
                try:
                    self.assignments.heard(said)
                except ValueError:
                    continue  # an account of something it never had
            elif isinstance(said, wire.Broken):
                self.problem = said.text
        post_mortem = self.assignments.post_mortem()
        self.killed_idle = self.killed_idle and post_mortem.is_sound  # marks that were overwritten do not say that nothing ran
        return post_mortem
