"""What is left when workers, templates and consumers are killed at random under load? Everything, exactly accounted for.

The same seed makes the same messages and the same choices; when a kill falls is up to the machine.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from unpoison.testing.isolation import tree
from unpoison.testing.isolation.consumer_process import ConsumerProcess, Supervisor
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.isolation.scene import Scene

LIMIT = 5
PER_KILL = 10
"""Messages published for each kill, so that there is always something running."""

# One that failed at every other start could be convicted by kills that happen to follow each of its good ones.
INNOCENT = {"healthy": {}, "busy": {"do": "block", "how": 0.01}, "flaky": {"do": ["raise", *["nothing"] * 20]}}
GUILTY: dict[str, Any] = {
    "raising": {"do": "raise"},
    "crashing": {"do": "segfault"},
    "leaving": {"do": "exit"},
    "dying": {"do": "die"},
    "hopeless": {"do": "give_up"},
    "garbage": b"\xff\x00",
    "stuck": {"do": "loop"},
    "killing": {"do": "kill_consumer"},
}
WEIGHTS: dict[str, float] = {
    "healthy": 60,
    "busy": 15,
    "flaky": 6,
    "discarded": 5,
    "raising": 3,
    "crashing": 2,
    "leaving": 2,
    "dying": 2,
}
WEIGHTS |= {"hopeless": 2, "garbage": 2, "stuck": 0.3, "killing": 0.3}


class Chaos:
    """Consumers under load, whose processes are killed at random."""

    def __init__(self, scene: Scene, seed: int, consumers: int = 2) -> None:
        self._scene = scene
        self._random = random.Random(seed)  # noqa: S311 - for variety, not for secrets
        self._supervisors = [Supervisor(scene.plan, restarts=10**6, until_empty=False) for _ in range(consumers)]
        self.published: list[str] = []
        self.killed: Counter[str] = Counter()
        self._stopped: set[int] = set()

    def reign(self, kills: int) -> None:
        """Kill so many processes while messages come in; then let everything come to an end by itself."""
        self._publish()
        for supervisor in self._supervisors:
            supervisor.start()
        while self.killed.total() < kills:
            self._publish()
            self._wait_for_starts(self._random.randint(1, 2 * PER_KILL))
            self._kill()
        for supervisor in self._supervisors:
            self._end(supervisor)
        self._scene.supervised(len(self._supervisors), restarts=1000)

    def _publish(self) -> None:
        kinds = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=PER_KILL)
        bodies = INNOCENT | GUILTY | {"discarded": {"do": "discard"}}
        batch = {f"{kind}-{len(self.published) + n}": bodies[kind] for n, kind in enumerate(kinds)}
        self._scene.publish(batch)
        self.published += batch

    def _wait_for_starts(self, count: int) -> None:
        """Under load, then: after so many more messages were started."""
        before = len(self._scene.diary.entries("start"))
        self._watched(lambda: len(self._scene.diary.entries("start")) >= before + count or self._scene.depth().empty)

    def _watched(self, is_so: Callable[[], bool]) -> None:
        def is_so_or_broken() -> bool:
            for supervisor in self._supervisors:
                if supervisor.problem:
                    raise AssertionError(supervisor.problem)
            return is_so()

        wait_until(is_so_or_broken, lambda: f"Nothing goes on any more: {self._scene.depth()}, {self.killed}")

    def _kill(self) -> None:
        kind = self._random.choice(["worker", "worker", "worker", "template", "template", "consumer", "consumer", "deploy"])
        consumer = self._random.choice(self._supervisors).consumers[-1]
        find: dict[str, Callable[[], list[int]]] = {
            "worker": consumer.workers,
            "template": lambda: [tree.template_of(consumer.pid)],
            "consumer": lambda: [consumer.pid],
            "deploy": lambda: [consumer.pid] if self._may_stop(consumer) else [],
        }
        victim = self._random.choice(sorted(find[kind]()) or [0])
        if victim:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGTERM if kind == "deploy" else signal.SIGKILL)
                self.killed[kind] += 1

    def _may_stop(self, consumer: ConsumerProcess) -> bool:
        """Each consumer is asked to stop once: a second time would cut off what runs, and that adds a start."""
        if consumer.pid in self._stopped or not consumer.said("Consuming"):
            return False
        self._stopped.add(consumer.pid)
        return True

    def _end(self, supervisor: Supervisor) -> None:
        """A planned stop. A message may be killing the consumer at this moment, and then the next one is to be stopped."""
        supervisor.is_wanted = False

        def has_ended() -> bool:
            consumer = supervisor.consumers[-1]
            if self._may_stop(consumer):
                consumer.send(signal.SIGTERM)
            return not supervisor.is_alive()

        self._watched(has_ended)
        supervisor.finish()


def assert_everything_is_accounted_for(scene: Scene, chaos: Chaos) -> None:
    """published = done + dead + discarded, nothing waits; only the guilty are dead, and none started too often."""
    published = set(chaos.published)
    letters = scene.letters()
    dead, discarded = set(letters), {id_ for id_ in published if id_.startswith("discarded")}
    done = set(scene.diary.done())
    innocent_dead = {id_: letters[id_].reason for id_ in dead if id_.partition("-")[0] not in GUILTY}
    assert not innocent_dead, f"innocents in the DLQ: {innocent_dead}"
    assert done | dead | discarded == published, f"lost: {published - done - dead - discarded}"
    assert not done & dead, f"both done and dead: {done & dead}"
    assert discarded <= set(scene.diary.starts()), f"never started: {discarded - set(scene.diary.starts())}"
    assert scene.depth().empty, f"something is left: {scene.depth()}"
    too_often = {id_: count for id_, count in scene.diary.starts().items() if count > LIMIT + 1}
    if not scene.is_atomic:  # a consumer killed between copy and letting go leaves both, each with starts of its own
        assert len(too_often) <= chaos.killed["consumer"], f"more than were killed: {too_often}"
        too_often = {id_: count for id_, count in too_often.items() if count > 2 * (LIMIT + 1)}
    assert not too_often, f"started too often: {too_often}"
