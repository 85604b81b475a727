"""The scene of a promise about isolated workers: messages, consumers in processes of their own, random kills, what is left."""

import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from unpoison.body.payload import encode
from unpoison.brokers import ADAPTERS
from unpoison.flow.sending import check
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Depth, Kept, Settlement
from unpoison.testing.isolation import processes
from unpoison.testing.isolation.diary import PATIENCE, SOURCE, Diary, Plan, wait_until
from unpoison.testing.isolation.processes import ConsumerProcess, Supervisor
from unpoison.testing.lab import Lab

SCRIPTED_APP = "unpoison.testing.isolation.scripted_app:app"
A_MOMENT = 2.0


class Scene:
    """One source, its handlers' diary, and any number of consumers. Leaving it checks that no process is left running."""

    def __init__(self, lab: Lab, *, app: str = SCRIPTED_APP, style: str = "sync", **options: Any) -> None:
        lab.needs(Capability.SHARED | Capability.DURABLE)
        self._lab = lab
        self.is_atomic = lab.is_atomic
        self.diary = Diary(lab.folder)
        self.plan = Plan(
            url=lab.url,
            folder=str(lab.folder),
            token=secrets.token_hex(16),
            app=app,
            style=style,
            settings=options.pop("settings", {}),
            also=options.pop("also", {}),
            options=options,
            adapters=ADAPTERS,
        )

    def changed(self, **options: Any) -> None:
        """From the next consumer on."""
        self.plan = msgspec.structs.replace(self.plan, options={**self.plan.options, **options})

    def publish(self, messages: dict[str, Any], source: str = SOURCE) -> None:
        """Messages by id, in this order. A body of bytes is sent as it is."""
        bodies = {id_: body if isinstance(body, bytes) else encode(body) for id_, body in messages.items()}
        sent = [Outgoing(id_, source, body) for id_, body in bodies.items()]
        check(sent, self._lab.broker(source).publish(sent))
        self._lab.close()

    def healthy(self, count: int, name: str = "healthy", source: str = SOURCE, **body: Any) -> list[str]:
        """Publish messages that do no harm; returns their ids."""
        ids = [f"{name}-{n}" for n in range(count)]
        self.publish(dict.fromkeys(ids, body), source)
        return ids

    def vanish(self, only: Sequence[str] = ()) -> None:
        """Take what is there, or only these, as a consumer that then vanishes. The rest is handed back as it was."""
        broker = self._lab.broker(SOURCE)
        taken = broker.fetch(SOURCE, 1000)
        others = [Kept(delivery, delivery.counters) for delivery in taken if only and delivery.id not in only]
        broker.settle(Settlement(kept=others))
        self._lab.close()

    def consumer(self, *, until_empty: bool = False) -> ConsumerProcess:
        return ConsumerProcess(self.plan, until_empty=until_empty)

    def let_everything_be_prefetched(self) -> None:
        """Until nothing is left to be fetched, or the consumer does not want more."""
        with suppress(AssertionError):
            wait_until(lambda: self.depth().ready == 0, lambda: "It does not want more", A_MOMENT)

    def drained(self) -> ConsumerProcess:
        """Consume until nothing is left, in one consumer that nothing may bring down."""
        with self.consumer(until_empty=True) as consumer:
            assert consumer.wait() == 0, consumer.text()[-8000:]
        return consumer

    def supervised(self, consumers: int = 1, restarts: int = 20) -> list[ConsumerProcess]:
        """Consume until nothing is left; a consumer that dies is started again at once. Returns all there were."""
        supervisors = [Supervisor(self.plan, restarts) for _ in range(consumers)]
        for supervisor in supervisors:
            supervisor.start()
        for supervisor in supervisors:
            supervisor.finish()
        return [consumer for supervisor in supervisors for consumer in supervisor.consumers]

    def all_letters(self) -> list[DeadLetter]:
        found = list(self._lab.dlq(SOURCE).letters(state=None))
        self._lab.close()
        return found

    def letters(self) -> dict[str, DeadLetter]:
        """The dead letters by the id of their message. None may be there twice."""
        found = self.all_letters()
        twice = [id_ for id_, count in Counter(letter.message.id for letter in found).items() if count > 1]
        assert not twice, f"there are two letters of {twice}"
        return {letter.message.id: letter for letter in found}

    def replay(self) -> None:
        self._lab.dlq(SOURCE).replay_all()
        self._lab.close()

    def depth(self) -> Depth:
        depth = self._lab.broker(SOURCE).depth(SOURCE)
        self._lab.close()
        return depth

    def wait_for_dead(self, count: int, patience: float = PATIENCE) -> None:
        wait_until(lambda: self.depth().dead >= count, lambda: f"Not {count} became dead letters: {self.depth()}", patience)

    def waiting(self) -> dict[str, Delivery]:
        """What a consumer would get now, by id; it stays as it is."""
        broker = self._lab.broker(SOURCE)
        found = {delivery.id: delivery for delivery in broker.fetch(SOURCE, 1000)}
        broker.settle(Settlement(kept=[Kept(delivery, delivery.counters) for delivery in found.values()]))
        self._lab.close()
        return found

    def open_gate(self, name: str) -> None:
        self.diary.gate(name).touch()

    def close_gate(self, name: str) -> None:
        self.diary.gate(name).unlink()

    def close(self) -> None:
        processes.end_all(self.plan.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                processes.expect_nobody(self.plan.token)
            else:
                self._tell_what_happened()
        finally:
            self.close()

    def _tell_what_happened(self) -> None:
        """A promise that is broken once in a hundred runs cannot be asked a second time."""
        for entry in self.diary.entries():
            sys.stderr.write(f"{entry}\n")
        for log in sorted(self.diary.folder.glob("log-*"), key=lambda path: path.stat().st_mtime):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-8000:]}\n")


# What is left when workers, templates and consumers are killed at random under load? Everything, exactly accounted for. The same
# seed makes the same messages and the same choices; when a kill falls is up to the machine.


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
            "template": lambda: [processes.template_of(consumer.pid)],
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
