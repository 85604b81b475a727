"""What the consumer does about a worker that its messages have damaged, or may have damaged.

The worker reports what a check of itself found (`health`). The consumer logs it with the messages that may have done it. What
happens in every worker is recognised as the app's own habit. A worker in which one message after the other fails is
replaced, since there is damage that no check can see.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from unpoison.model.events import fields
from unpoison.worker import wire
from unpoison.worker.health import REVERSIBLE
from unpoison.workers.interface import Ended

if TYPE_CHECKING:
    from unpoison.workers.pooled_worker import PooledWorker

log = logging.getLogger("unpoison")

FAILURES_IN_A_ROW = 20
"""After so many different messages have failed in a row, a worker is replaced."""

TIMES_IN_ONE = 3
"""How often different messages must change the same thing in one worker, where little load leaves the others unused."""

NAMED = 20
"""How many of the messages that may have damaged a worker are named in the log line; all of them are in its `candidates`."""


class Habits:
    """What handlers of one source change in every worker, whatever the message: the app does so on purpose."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[PooledWorker, frozenset[str]]]] = {}
        self._habits: set[str] = set()

    def apply(self, worker: "PooledWorker") -> None:
        """Let a worker know what it need not check."""
        worker.process.marks.habits = sum(1 << REVERSIBLE.index(name) for name in self._habits)

    def unknown(self, said: wire.Damaged) -> wire.Damaged:
        """A report without known habits. The worker may have checked itself just before it could read that this is one."""
        if self._habits.isdisjoint(said.reversible):
            return said
        others, words = said.what[: -len(said.reversible)], said.what[-len(said.reversible) :]
        kept = [(name, word) for name, word in zip(said.reversible, words, strict=False) if name not in self._habits]
        what = [*others, *(word for _, word in kept)]
        return msgspec.structs.replace(said, what=what, reversible=[name for name, _ in kept])

    def learn(self, worker: "PooledWorker", said: wire.Damaged, candidates: Sequence[str]) -> Sequence[str]:
        """What of this damage is a habit by now: different messages did it in two workers, or several times in one."""
        learned = []
        for name in said.reversible:
            seen = self._seen.setdefault(name, [])
            if all(messages.isdisjoint(candidates) for _, messages in seen):  # one that is retried does it again
                seen.append((worker, frozenset(candidates)))
            if len({where for where, _ in seen}) > 1 or len(seen) >= TIMES_IN_ONE:
                learned.append(name)
                del self._seen[name]
        self._habits.update(learned)
        return learned


class Trust:
    """Decides whether the workers of one source can still be used."""

    def __init__(self, source: str, name: str = "") -> None:
        self._source, self._name = source, name or source
        self._habits = Habits()
        self._patience = FAILURES_IN_A_ROW

    def prepare(self, worker: "PooledWorker") -> None:
        """A worker that is about to get its first message."""
        self._habits.apply(worker)

    def damaged(self, worker: "PooledWorker", said: wire.Damaged, others: "Iterable[PooledWorker]") -> None:
        """A check found something. If all of it was undone, the worker stays; otherwise it is replaced."""
        candidates = worker.assignments.candidates(said)
        reported, said = said, self._habits.unknown(said)
        worker.retiring = worker.retiring or said.is_lasting or said is not reported  # a habit was put back: see below
        if not said.what:
            return
        is_news = said.is_lasting or not worker.put_back.issuperset(said.reversible)
        worker.put_back.update(said.reversible)
        if learned := self._habits.learn(worker, said, candidates):
            self._left_alone(learned)
            for each in others:
                self._habits.apply(each)
                # A handler that sets it once and expects to find it again needs a new worker, in which it is left alone.
                each.retiring = each.retiring or any(name in each.put_back for name in learned)
            return
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "Worker %d of %r was damaged by one of its messages: %s. %s It was one of %s.",
            worker.process.pid,
            self._name,
            ", ".join(said.what),
            "The worker is replaced." if said.is_lasting else "That was undone. To change it for good, do so in on_worker_start.",
            _named(candidates),
            extra=fields("worker-damaged", source=self._source, pid=worker.process.pid, candidates=list(candidates)),
        )

    def _left_alone(self, learned: Sequence[str]) -> None:
        log.warning(
            "Handlers of %r change the %s of their workers with every message. From now on it is left changed; a handler that "
            "expects it unchanged may fail.",
            self._name,
            " and ".join(learned),
            extra=fields("worker-habit", source=self._source),
        )

    def ended(self, worker: "PooledWorker", ended: Ended) -> bool:
        """False if so many messages have failed in a row in this worker that it should be replaced."""
        if not ended.failures:
            if ended.deliveries:
                worker.failing.clear()
                self._patience = FAILURES_IN_A_ROW
            return True
        for n, delivery in enumerate(ended.deliveries):
            failure = ended.failures.get(n)
            if failure is None or failure.discard:
                worker.failing.clear()
                self._patience = FAILURES_IN_A_ROW
            elif failure.charged and failure.started:
                worker.failing.add(delivery.id)
        if len(worker.failing) < self._patience:
            return True
        log.warning(
            "Worker %d of %r is replaced: the last %d messages in it all failed, and the worker itself may be the cause.",
            worker.process.pid,
            self._name,
            len(worker.failing),
            extra=fields("worker-replaced", source=self._source, pid=worker.process.pid),
        )
        self._patience *= 2  # until a new one does better: an outage must not use up one worker after the other
        return False


def _named(candidates: Sequence[str]) -> str:
    named = ", ".join(repr(name) for name in candidates[-NAMED:])
    return f"{len(candidates)} messages, the last of which are {named}" if len(candidates) > NAMED else named
