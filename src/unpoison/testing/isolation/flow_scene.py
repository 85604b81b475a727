"""The scene of a promise about flow control: messages, a dependency that fails, consumers, and what they did when."""

import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from unpoison.control.options import Breaker
from unpoison.flow.sending import check
from unpoison.model.backoff import Backoff
from unpoison.model.message import Outgoing
from unpoison.port.broker import Depth
from unpoison.testing.dependency import Dependency
from unpoison.testing.isolation.diary import PATIENCE, SOURCE, Entry, wait_until
from unpoison.testing.isolation.forked_consumer import ForkedConsumer
from unpoison.testing.isolation.processes import ConsumerProcess
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

CALLING_APP = "unpoison.testing.isolation.calling_app:app"
ASK_EVERY = 0.1
PUBLISH_EVERY = 0.02
SHORTER = 20.0
"""By this all times of flow control are divided, so that an outage of ten minutes takes half of one."""
FULL = Breaker()
BREAKER = Breaker(FULL.messages, FULL.within / SHORTER, FULL.first_probe / SHORTER, FULL.longest_probe / SHORTER)
BACKOFF = Backoff.exponential(1 / SHORTER, 60 / SHORTER)


class FlowScene(Scene):
    """One source whose handler calls a dependency. Handlers run in threads of a forked process, or isolated as in `unpoison
    run`."""

    def __init__(self, lab: Lab, *, isolated: bool = False, also: dict[str, Any] | None = None, **options: Any) -> None:
        options = {"breaker": BREAKER, "backoff": BACKOFF, "concurrency": 4} | options
        super().__init__(lab, app=CALLING_APP, **{name: msgspec.to_builtins(value) for name, value in options.items()})
        self.dependency, self._is_isolated = Dependency(), isolated
        self.plan = msgspec.structs.replace(self.plan, also={"dependency": self.dependency.url, **(also or {})})

    def traffic(self, rate: float, needing: int = 10, name: str = "traffic") -> "Traffic":
        """Messages come in at this rate while the block lasts. Of ten, so many need the dependency."""
        return Traffic(self._lab, rate, needing, name)

    def redeployed(self, version: str, *, is_broken: bool = False) -> None:
        """From the next consumer on: another version of the code."""
        settings, also = {**self.plan.settings, "code_version": version}, {**self.plan.also, "is_broken": is_broken}
        self.plan = msgspec.structs.replace(self.plan, settings=settings, also=also)

    def consumer(self, *, until_empty: bool = False) -> ConsumerProcess:
        return super().consumer(until_empty=until_empty) if self._is_isolated else ForkedConsumer(self.plan)

    def kill(self, consumer: ConsumerProcess) -> None:
        """kill -9."""
        consumer.send(signal.SIGKILL)
        consumer.wait()

    def wait_until_ended(self, consumer: ConsumerProcess) -> None:
        """Every start has ended badly, as the log tells."""

        def ended() -> int:
            return sum(line.event in ("retry", "dead") for line in consumer.log())

        wait_until(lambda: ended() == self.diary.starts().total(), lambda: "What was started does not end")

    def wait_for_event(self, consumer: ConsumerProcess, event: str) -> None:
        wait_until(lambda: any(line.event == event for line in consumer.log()), lambda: f"No {event}: {consumer.text()[-4000:]}")

    def starts_between(self, begin: float, end: float) -> list[tuple[float, str]]:
        """When messages were started, and which."""
        return sorted((at, entry.id) for entry in self.diary.entries("start") if begin <= (at := moment(entry)) < end)

    def first_done_after(self, begin: float) -> float:
        """When the first message was done after this time; waits for it."""

        def done() -> list[float]:
            return [at for entry in self.diary.entries("done") if (at := moment(entry)) >= begin]

        wait_until(done, lambda: "Nothing was done")
        return min(done())

    def charged(self) -> dict[str, int]:
        """By message, how often it had been charged when it was started last."""
        return {entry.id: entry.attempt - 1 for entry in self.diary.entries("start")}

    def wait_for_dead(self, count: int, patience: float = PATIENCE) -> None:
        self.wait_for_depth(lambda depth: depth.dead >= count, patience)

    def wait_until_empty(self, patience: float = PATIENCE) -> None:
        self.wait_for_depth(lambda depth: depth.empty, patience)

    def wait_for_depth(self, is_so: Callable[[Depth], bool], patience: float) -> None:
        """Over one connection, and asked a few times a second only: some servers have much to do to answer."""
        broker, found = self._lab.broker(SOURCE), Depth()

        def look() -> bool:
            nonlocal found
            found = broker.depth(SOURCE)
            if is_so(found):
                return True
            time.sleep(ASK_EVERY)
            return False

        wait_until(look, lambda: f"It did not come to that: {found}", patience)
        self._lab.close()

    def __enter__(self) -> Self:
        self.dependency.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.dependency.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)


class Traffic(threading.Thread):
    """Publishes messages in a thread of its own, over one connection, until the block ends or so many were published."""

    def __init__(self, lab: Lab, rate: float, needing: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._lab, self._rate, self._needing = lab, rate, needing
        self._is_over = threading.Event()
        self._problem: BaseException | None = None
        self.ids: list[str] = []

    def run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # raised where the block ends
            self._problem = error

    def _publish(self) -> None:
        broker, began = self._lab.connect(), time.monotonic()
        broker.open([SOURCE])
        every = max(1 / self._rate, PUBLISH_EVERY)
        while not self._is_over.wait(every):
            due = int((time.monotonic() - began) * self._rate) - len(self.ids)
            messages = [self._message(len(self.ids) + n) for n in range(due)]
            check(messages, broker.publish(messages))
            self.ids += [message.id for message in messages]
        broker.close()

    def _message(self, number: int) -> Outgoing:
        needs = number % 10 < self._needing
        return Outgoing(f"{'needing' if needs else 'other'}-{self.name}-{number}", SOURCE, b"{}" if needs else b'{"calls":false}')

    def needing(self) -> list[str]:
        return [id_ for id_ in self.ids if id_.startswith("needing")]

    def others(self) -> list[str]:
        return [id_ for id_ in self.ids if id_.startswith("other")]

    def wait(self, seconds: float) -> None:
        """While messages come in. Raises as soon as they cannot be published."""
        self.join(seconds)
        if self._problem is not None:
            raise self._problem

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self.join()
        if self._problem is not None:
            raise self._problem


def moment(entry: Entry) -> float:
    return float(entry.note)
