"""One source of a `LeasedBroker`, as far as this process consumes it: what is the same for each server that takes messages back.

An adapter says how messages are fetched, from which queues, and what waits here unfetched.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from unpoison.model.events import fields
from unpoison.model.message import Counters, Delivery
from unpoison.port import serialization
from unpoison.port.copying.leases import Leases, all_in_turn
from unpoison.port.takeovers import CameBack

log = logging.getLogger("unpoison")


class Leased(Protocol):
    """One queue, as far as this process takes its messages: a `Holder`, too, or behind one."""

    @property
    def leases(self) -> "Leases[bytes] | Leases[str]": ...

    def renew(self) -> None:
        """Keep what is held for another while."""

    def give_up(self) -> None:
        """Return what is still ours at once, as from a consumer that vanished."""


class LeasedSource(ABC):
    """One source, as far as this process consumes it. `promised` is how many seconds the server leaves a message to a consumer of
    which it hears nothing."""

    def __init__(self, name: str, promised: float) -> None:
        self.name, self.promised = name, promised
        self.came_back, self.moved_back = CameBack(), CameBack(tell=serialization.tell)
        self.is_paused = False
        self._told_foreign = False

    @property
    @abstractmethod
    def subscriptions(self) -> Sequence[Leased]:
        """All queues of it from which messages are held here."""

    @abstractmethod
    def fetch(self, limit: int) -> list[Delivery]:
        """What is ready now, at most so many."""

    def fetch_paused(self, limit: int) -> list[Delivery]:
        """As `fetch`, while the source is paused: the server is asked for nothing beyond these, and nothing is to come later."""
        return self.fetch(limit)

    @abstractmethod
    def has_suspect(self) -> bool: ...

    @abstractmethod
    def take_suspect(self, by: str) -> Delivery | None: ...

    @property
    def is_late(self) -> bool:
        """Whether something was held for longer than the server has promised."""
        return any(each.leases.is_late for each in self.subscriptions)

    def is_left_alone(self, after: float) -> bool:
        """Whether messages wait here and none was fetched for so long."""
        return False

    def verify(self) -> None:  # noqa: B027 - most servers forget nothing
        """Find out whether the server still knows that we hold what we hold."""

    def renew(self) -> None:
        """Keep what is held for another while. Called by a thread of its own, also while the consumer settles."""
        all_in_turn(each.renew for each in self.subscriptions)

    def has_published(self) -> None:  # noqa: B027 - for servers that hand out late what was stored just now
        """We have stored something in the source ourselves, and the next fetch should find it."""

    def stop_listening(self) -> None:  # noqa: B027 - for sources to which messages come by themselves
        """Take no more messages until the next fetch."""

    def unfetched(self) -> Iterator[Sequence[Delivery]]:
        """What waits here, was not fetched and is to go back, in batches. Nothing more comes until the next fetch."""
        return iter(())

    def give_up(self) -> None:
        """Return what is still ours at once, as from a consumer that vanished, and leave the rest alone."""
        for each in self.subscriptions:
            each.give_up()

    def close(self) -> None:  # noqa: B027 - for sources with threads
        """Ask for nothing any more."""

    def tell_due(self) -> None:
        """To be called at the end of each fetch."""
        self.came_back.tell_due()
        self.moved_back.tell_due()

    def tell_foreign(self, warning: str, message_id: str) -> None:
        """Once for each source: a program that writes counters of our name does so on every message."""
        if not self._told_foreign:
            self._told_foreign = True
            log.warning(warning, self.name, message_id, extra=fields("foreign-attempts", source=self.name, message_id=message_id))


def returned(counters: Counters, times: int) -> Counters:
    """As they are if the message came back so often from consumers that vanished. More than twice tells no more."""
    for _ in range(min(2, times)):
        counters = counters.returned()
    return counters
