"""What a consumer asks of its workers, whichever kind they are.

The consumer hands batches of deliveries to its workers and collects the results. Workers never raise for what a handler does:
every bad end is a Failure.
"""

import os
import select
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from unpoison.model.failure import Failure
from unpoison.model.message import Delivery


@dataclass(frozen=True, slots=True)
class Ended:
    """Messages whose handler has ended. All of them went well but those listed, by index, in `failures`.

    `exceptions` holds the exceptions behind the failures where they still exist, which is in this process only.
    `in_used_worker` says that other messages ran in the same worker process, before or beside these.
    """

    deliveries: Sequence[Delivery]
    failures: Mapping[int, Failure] = field(default_factory=dict)
    exceptions: Mapping[int, BaseException] = field(default_factory=dict)
    in_used_worker: bool = False

    def good(self) -> Sequence[Delivery]:
        """Those whose handler returned."""
        if not self.failures:
            return self.deliveries
        return [delivery for n, delivery in enumerate(self.deliveries) if n not in self.failures]


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Messages that were running when something else brought their worker down: not to blame, but known to have been there."""

    deliveries: Sequence[Delivery]
    must_run_alone: bool
    """One of them may have done it."""


Result: TypeAlias = Ended | Bystanders


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What a hard stop leaves: what had ended by then, what never began, and what was cut off."""

    ended: Sequence[Result] = ()
    unstarted: Sequence[Delivery] = ()
    running: Sequence[Delivery] = ()


class Workers(Protocol):
    """What runs the handler of one source."""

    def room(self) -> int:
        """How many more messages can be handed over now."""

    def start(self, deliveries: Sequence[Delivery], fresh: Sequence[Delivery] = ()) -> None:
        """Hand these over, to be started as soon as there is a free place; `fresh` ones first, each in a new worker."""

    def ended(self) -> Sequence[Result]:
        """What has ended since this was last asked. Does not wait."""

    def running(self) -> int:
        """How many messages were handed over and have not been collected."""

    def wait(self, timeout: float) -> None:
        """Sleep until the bell rings or something ends, for at most so long."""

    def surplus(self) -> Sequence[Delivery]:
        """What would have to wait long here, since every worker is busy with a slow message: others may have it."""

    def take_back(self) -> Sequence[Delivery]:
        """Those that were not started: they will not be."""

    def interrupt(self) -> Interrupted:
        """Cut off what is running, where that is possible."""

    def close(self) -> None:
        """End the workers in good order."""


def readable(descriptors: Iterable[int], wait: float) -> bool:
    """Whether one of these can be read, within so long. Not with select, which knows only the first 1,024 of a process."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(wait * 1000))


class Bell:
    """`ring` from any thread; `wait` returns at once if it has rung since it was last silenced."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it is ringing already, as loud as it can
            os.write(self._write, (1).to_bytes(8, "little"))

    def silence(self) -> None:
        with suppress(BlockingIOError):  # it was silent
            os.read(self._read, 4096)

    def wait(self, timeout: float) -> None:
        readable((self._read,), max(0.0, timeout))
        self.silence()

    def __del__(self) -> None:
        """Only now: a thread that still rings it would write into whatever has its descriptor number by then."""
        with suppress(OSError, AttributeError):  # there may have been no descriptor left to make it with
            os.close(self._read)
            if self._write != self._read:
                os.close(self._write)
