"""What really happened to each simulated message, and does it agree with what was promised?

A `Life` knows what no consumer can know: each start, and how it ended. It counts by itself and never looks at the code under
test for what should be; a promise that does not hold raises `Broken`.
"""

from dataclasses import dataclass, field

from tests.unit.simulated_messages import Behaviour, End
from unpoison.flow.settling import NewSuspects
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery
from unpoison.workers.interface import Bystanders, Ended, Result

DONE = (End.DONE.value, End.DAMAGE.value, End.BREAK.value, End.KILL_WITH_PARTNER.value)
HURT = "was hurt"
"""It failed, or may have, because of what another message did to its worker."""
RAISED = (HURT, End.RAISE.value, End.LATER.value, End.THROTTLED.value, End.PERMANENT.value)


class Broken(BaseException):
    """A promise was not kept. No Exception: the consumer would take it for a fault of its own and settle around it."""


@dataclass(eq=False, slots=True)
class Life:
    """One message. What is counted begins anew with each replay."""

    id: str
    behaviour: Behaviour
    limit: int | None
    max_age: float | None = None
    first_failed: float | None = None
    starts_ever: int = 0
    starts: int = 0
    not_charged: int = 0
    """Starts that the promise adds: ended by RetryLater or Throttled, or cut off by a planned stop."""
    failures: int = 0
    losses_in_company: int = 0
    losses_alone: int = 0
    is_suspect: bool = False
    needs_fresh: bool = False
    was_fresh: bool = False
    replays: int = 0
    how: str = "waits"
    last_loss: str = "never lost"
    outcome: str = "waiting"
    trace: list[str] = field(default_factory=list)
    partner: "Life | None" = None

    @property
    def charged(self) -> int:
        return self.failures + self.losses_alone + (self.losses_in_company >= 2)

    @property
    def must_be_alone(self) -> bool:
        few_left = self.limit is not None and self.failures > self.limit - 3
        return self.is_suspect or self.losses_in_company >= 2 or (self.losses_in_company == 1 and few_left)

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            raise Broken(f"{self.id} ({self.behaviour.name}): {promise}")

    def check_counters(self, counters: Counters, when: str) -> None:
        mine = (self.failures, min(2, self.losses_in_company), self.losses_alone, self.is_suspect, self.replays)
        said = (counters.attempts, counters.vanished, counters.losses, counters.alone, counters.replays)
        self.check(mine == said, f"counters {when} are {said}, but (attempts, vanished, losses, alone, replays) were {mine}")

    def begin(self, delivery: Delivery, *, is_fresh: bool, is_stale: bool) -> End:
        """It is started now. A stale consumer holds an old delivery and does not know that it lost the message."""
        self.starts += 1
        self.starts_ever += 1
        if not is_stale:
            self.was_fresh = is_fresh
            self.check(self.outcome == "waiting", f"started again although it was {self.outcome}")
            self.check_counters(delivery.counters, "at the start")
        if self.limit is not None:
            self.check(delivery.attempt <= self.limit, f"attempt {delivery.attempt} is above the limit of {self.limit}")
            most = self.limit + 1 + self.not_charged
            self.check(self.starts <= most, f"start {self.starts}, and {most} are allowed with a limit of {self.limit}")
        return self.behaviour.end(self.starts_ever)

    def was_lost(self, *, alone: bool) -> None:
        """The consumer that held it vanished."""
        if alone:
            self.losses_alone += 1
        else:
            self.losses_in_company += 1
        self.how, self.last_loss = "waits", "lost alone" if alone else "lost in company"

    def was_set_aside(self) -> None:
        self.check(self.must_be_alone, "was set aside without need")
        self.is_suspect = True
        if self.limit is not None and self.failures >= self.limit - 1:
            self.losses_in_company = min(1, self.losses_in_company)  # it cannot have been running the second time

    def was_bystander(self, *, alone: bool) -> None:
        self.check(not self.is_suspect, "ran alone, its worker died, and it was not charged")
        self.check(self.how != End.HANG.value, "was over its time limit and was not charged")
        self.losses_in_company += 1
        self.is_suspect = self.is_suspect or alone

    def has_failed(self, failure: Failure, now: float) -> None:
        """In a worker that others used, what may be their doing is booked like a loss in company instead of charged."""
        kind = failure.classification
        guilty = {"crash": ("died", "was hit"), "timeout": (End.HANG.value,)}.get(kind, RAISED)
        self.check(self.how in guilty, f"was charged with {kind} for what another one did: it {self.how}")
        speaks_against_the_worker = kind in ("crash", "timeout")
        would_convict = speaks_against_the_worker and self.limit != 1 and (self._is_last() or self._is_old(now))
        if failure.charged and not self.was_fresh and (failure.worker_damage or would_convict):
            self.losses_in_company += 1
            self.needs_fresh = True
        else:
            self.failures += failure.charged
            self.not_charged += not failure.charged
            self.needs_fresh = self.needs_fresh or speaks_against_the_worker
        self.was_dated(now)

    def was_dated(self, now: float) -> None:
        """Its age counts from the first start that failed or was cut off."""
        self.first_failed = now if self.first_failed is None else self.first_failed

    def _is_last(self) -> bool:
        return self.limit is not None and self.charged >= self.limit - 1

    def _is_old(self, now: float) -> bool:
        first, cap = self.first_failed, self.max_age
        return cap is not None and first is not None and round(now - first, 6) >= cap

    def is_done(self) -> None:
        self.check(self.how in DONE, f"is taken for done, but it {self.how}")
        self.outcome = "done"

    def was_cut_off(self, now: float) -> None:
        self.was_dated(now)
        self.not_charged += 1
        self.how = "was cut off"

    def was_replayed(self, classification: str) -> None:
        taken_down = classification in ("crash", "lost")
        self.starts = self.not_charged = self.failures = self.losses_alone = 0
        self.losses_in_company = 1 if taken_down else 0
        self.is_suspect, self.needs_fresh, self.first_failed = taken_down, False, None
        self.replays += 1
        self.outcome, self.how, self.last_loss = "waiting", "waits", "never lost"

    def check_letter(self, classification: str, attempts: int, rule: str) -> None:
        """`has_failed` was told of the last failure already."""
        self.check(attempts == self.charged or classification == "invalid", f"the letter says {attempts} attempts")
        is_spent, is_old = self.limit is not None and self.charged >= self.limit, rule.startswith("max-age")
        match classification:
            case "lost":
                self.check(self.last_loss == "lost alone", f"dead-lettered as lost, but it was {self.last_loss}")
                self.check(is_spent, f"dead-lettered as lost with {self.charged} attempts used of {self.limit}")
            case "crash":
                self.check(self.how in ("died", "was hit"), f"dead-lettered for a crash, but it {self.how}")
                self.check(self.was_fresh or self.limit == 1, "convicted of a crash in a worker that others had used")
            case "timeout":
                self.check(self.how == End.HANG.value, f"dead-lettered for a timeout, but it {self.how}")
                self.check(self.was_fresh or self.limit == 1, "convicted of a timeout in a worker that others had used")
            case "permanent":
                self.check(self.how == End.PERMANENT.value, f"dead-lettered as permanent, but it {self.how}")
            case "transient" | "throttled":
                self.check(self.how in RAISED, f"dead-lettered as {classification}, but it {self.how}")
            case "unknown":
                self.check(self.how == "was cut off", f"dead-lettered ({rule}), but it {self.how}")
            case other:
                self.check(False, f"dead-lettered as {other}: {rule}")
        self.check(is_spent or is_old or classification == "permanent", f"given up with attempts left: {rule}")


def settled(lives: dict[str, Life], result: Result | NewSuspects, now: float) -> None:
    """The broker has confirmed what became of these."""
    match result:
        case Ended():
            for delivery in result.good():
                lives[delivery.id].is_done()
            for n, failure in result.failures.items():
                life = lives[result.deliveries[n].id]
                if failure.discard:
                    life.outcome = "discarded"
                elif failure.started:
                    life.has_failed(failure, now)
        case Bystanders(deliveries, must_run_alone):
            for delivery in deliveries:
                lives[delivery.id].was_bystander(alone=must_run_alone)
        case NewSuspects(deliveries):
            for delivery in deliveries:
                lives[delivery.id].was_set_aside()
