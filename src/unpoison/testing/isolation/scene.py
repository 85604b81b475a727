"""How does a promise about isolated workers set its stage: messages, consumers in processes of their own, and what is left?"""

import secrets
import sys
from collections import Counter
from collections.abc import Sequence
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
from unpoison.testing.isolation import tree
from unpoison.testing.isolation.consumer_process import ConsumerProcess, Supervisor
from unpoison.testing.isolation.diary import PATIENCE, Diary, wait_until
from unpoison.testing.isolation.plan import SOURCE, Plan
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
        tree.end_all(self.plan.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                tree.expect_nobody(self.plan.token)
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
