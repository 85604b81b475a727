"""What does the broker say about one source: how many messages are where, how old is the oldest, when is it deleted?"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from unpoison.errors import UnpoisonError
from unpoison.port.broker import Broker, Depth, Forgets, HasLog, TellsOldest

Answer = TypeVar("Answer")


class AtBroker(msgspec.Struct, frozen=True):
    """What the broker says about one source. None where it cannot tell."""

    depth: Depth
    oldest: float | None = None
    """For how many seconds the message that waits longest has been ready."""
    deleted_after: float | None = None
    """After how many seconds a waiting message is deleted."""
    lag: int | None = None
    """How many messages of a log the group has not finished."""


def ask(broker: Broker, source: str) -> AtBroker:
    """Everything."""
    depth = broker.depth(source)
    return AtBroker(depth, oldest(broker, source), deleted_after(broker, source), lag(broker, depth))


def oldest(broker: Broker, source: str) -> float | None:
    return _if_it_can(broker.oldest, source) if isinstance(broker, TellsOldest) else None


def deleted_after(broker: Broker, source: str) -> float | None:
    return _if_it_can(broker.deletes_after, source) if isinstance(broker, Forgets) else None


def lag(broker: Broker, depth: Depth) -> int | None:
    return broker.lag(depth) if isinstance(broker, HasLog) else None


def _if_it_can(question: Callable[[str], Answer | None], source: str) -> Answer | None:
    """A user may lack the right to ask more than what consuming needs."""
    with suppress(UnpoisonError):
        return question(source)
    return None
