"""What does a message look like on its way through unpoison?

A `Message` is what the sender wrote and never changes. A `Delivery` is one handing-over of it by the
broker, together with what is known of its earlier starts (`Counters`). Both are msgspec structs and not
dataclasses for one reason: a consumer makes one Delivery per message, and a frozen slotted dataclass
costs ten times as much to make.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from unpoison.native import NO_HEADERS as NO_HEADERS  # noqa: PLC0414 - whoever makes a message needs it
from unpoison.native import UNTOLD, Native

MOST_COUNTED, MOST_MOMENT = 2**31 - 1, 2**36
"""What a counter and a time (in seconds since 1970) can be. Anyone may write headers that look like ours; what is beyond these
would break arithmetic, a calendar or a column of a database later on, so it is not read in the first place."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNTED)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=MOST_MOMENT)]


class Message(msgspec.Struct, frozen=True):
    """What the sender wrote: never decoded in place, never altered.

    A tombstone is a message that Kafka keeps with a null in place of a value. Its body is `b""`, as that of an empty message is.
    """

    id: str
    source: str
    body: bytes
    key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS
    is_tombstone: bool = False


class Past(msgspec.Struct, frozen=True):
    """One attempt that ended badly, as the dead letter tells it later."""

    attempt: Count
    at: Moment
    classification: str
    error: str


class Counters(msgspec.Struct, frozen=True):
    """What travels with a message about its earlier starts. Only Done clears it.

    `attempts` are starts whose bad end a living consumer saw and charged; `unseen` (0, 1 or 2) are times it
    was lost together with its whole consumer, when it *may* have been running; `losses` are starts, alone in
    their consumer, that never ended.
    """

    attempts: Count = 0
    unseen: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    losses: Count = 0
    alone: bool = False
    fresh: bool = False
    interrupted: Count = 0
    replays: Count = 0
    first_failed_at: Moment | None = None
    history: tuple[Past, ...] = ()

    @property
    def charged(self) -> int:
        """Starts held against the message; its limit is compared with this."""
        return self.attempts + self.losses + max(0, self.unseen - 1)

    def returned(self) -> "Counters":
        """As they are when the message came back from a consumer that vanished.

        A message that was to run alone has its start on record already, so nothing is added for it.
        """
        return self if self.alone else msgspec.structs.replace(self, unseen=min(2, self.unseen + 1))

    def marked(self, by: str, at: float) -> "Counters":
        """As they are on record while the message runs alone: a start that never ends stays counted."""
        start = Past(self.charged + 1, at, "lost", f"started alone on {by} and never ended: that process vanished")
        return msgspec.structs.replace(self, losses=self.losses + 1, history=(*self.history, start)[-20:])


UNTRIED = Counters()
"""Shared by every message that was never started, so that the ordinary case makes no object."""


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """One handing-over of a message by the broker. Ask for it as the handler's second parameter.

    `receipt` belongs to the broker: it finds the message by it when the delivery is settled. `native` is filled in only where
    the handler takes the Delivery. `is_tombstone` tells a null from an empty body.
    """

    receipt: Any
    source: str
    id: str
    body: bytes
    key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS
    counters: Counters = UNTRIED
    is_tombstone: bool = False
    native: Native = UNTOLD

    @property
    def attempt(self) -> int:
        """Which start this is, from 1. Starts that were not charged do not raise it."""
        return self.counters.charged + 1

    @property
    def returned(self) -> bool:
        """True if the message came back from a consumer that vanished: it may have run before."""
        return self.counters.unseen > 0 or self.counters.losses > 0

    @property
    def message(self) -> Message:
        return Message(self.id, self.source, self.body, self.key, self.headers, self.is_tombstone)


class Outgoing(msgspec.Struct, frozen=True):
    """A message about to be published. `delay` is in seconds, by the broker's clock."""

    id: str
    source: str
    body: bytes
    key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS
    delay: float = 0.0
