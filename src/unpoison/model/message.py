"""What a message looks like on its way through unpoison.

A `Message` is what the sender wrote and never changes. A `Delivery` is one handing-over of it by the
broker, together with what is known of its earlier starts (`Counters`). Both are msgspec structs and not
dataclasses for one reason: a consumer makes one Delivery per message, and a frozen slotted dataclass
costs ten times as much to make.

`Native` is what the handler finds in `delivery.native`: keys and headers as they came, and what the broker calls its properties.
`delivery.key` and `delivery.headers` are text views of the same facts. One rule makes them, on every broker:

- text is text; in bytes that are not UTF-8, each wrong byte is written as `\\xff`
- a number, a boolean, a list or a table is written as JSON; a null is the empty text
- if several headers have one name, the last one counts

unpoison's own headers are in neither.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from unpoison.errors import ConfigError

if TYPE_CHECKING:
    from unpoison.model.failure import Failure

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NO_PROPERTIES: Mapping[str, Any] = MappingProxyType({})


class Native(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the broker itself knows about a message. docs/native.md lists the properties of each broker.

    A value in `headers` is bytes wherever the broker has bytes or text, and a number, a boolean, None, a list or a dict where its
    headers have types. All headers of one name are there, in their order. Times among `properties` are seconds since 1970.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, Any], ...] = ()
    properties: Mapping[str, Any] = NO_PROPERTIES


UNTOLD = Native()
"""Of a message whose handler does not ask for its Delivery."""


def native_of_text(key: str | None, headers: Mapping[str, str], properties: Mapping[str, Any] = NO_PROPERTIES) -> Native:
    """For brokers that keep key and headers as text."""
    return Native(
        None if key is None else _bytes(key),
        tuple([(name, _bytes(text)) for name, text in headers.items()]) if headers else (),
        properties,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def as_text(value: object) -> str:
    """A key, a header or a field of any type, as text that can be stored and printed: see the rule above."""
    if type(value) is bytes:  # nearly always: asked for every header of every record
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=as_text).encode("utf-8", "backslashreplace").decode()


def text_headers(headers: Iterable[tuple[str, Any]]) -> Mapping[str, str]:
    """The text view of headers."""
    return {name: as_text(value) for name, value in headers} or NO_HEADERS


MOST_COUNTED, MOST_MOMENT = 2**31 - 1, 2**36
"""What a counter and a time (in seconds since 1970) can be. Anyone may write headers that look like ours; values beyond these
would break arithmetic, a calendar or a database column later, so they are not read in the first place."""

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


class PastAttempt(msgspec.Struct, frozen=True):
    """One attempt that ended badly, as the dead letter shows it later."""

    attempt: Count
    at: Moment
    classification: str
    error: str


DEPENDENCY_LIMIT = 200
"""Characters in the name of a dependency."""

HISTORY_LIMIT = 20
"""How many past attempts travel with a message."""


def with_past(history: tuple[PastAttempt, ...], past: PastAttempt) -> tuple[PastAttempt, ...]:
    """The history with one more attempt. When it is full, the first ones and the latest ones are kept."""
    longer, half = (*history, past), HISTORY_LIMIT // 2
    return longer if len(longer) <= HISTORY_LIMIT else longer[:half] + longer[-half:]


class Counters(msgspec.Struct, frozen=True, omit_defaults=True):
    """What travels with a message about its earlier starts. Only Done clears it.

    `attempts` are starts whose bad end a living consumer saw and charged; `vanished` (0, 1 or 2) are times it
    was lost together with its whole consumer, when it *may* have been running; `losses` are starts, alone in
    their consumer, that never ended.

    `waits_for` names the dependency whose outage it waits for, `put_off` is how often it was put off since it last
    ran into anything else, and `waited` how many seconds it was told to wait while its source was not paused: they do not count
    towards its age.
    """

    attempts: Count = 0
    vanished: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    losses: Count = 0
    alone: bool = False
    fresh: bool = False
    interrupted: Count = 0
    replays: Count = 0
    first_failed_at: Moment | None = None
    waits_for: Annotated[str, msgspec.Meta(max_length=DEPENDENCY_LIMIT)] = ""
    put_off: Count = 0
    waited: Moment = 0.0
    history: tuple[PastAttempt, ...] = ()

    @property
    def charged(self) -> int:
        """Starts held against the message; its limit is compared with this."""
        return self.attempts + self.losses + max(0, self.vanished - 1)

    def counts_more(self, before: "Counters") -> bool:
        """Whether it has failed, been lost or been doubted since, and not only waited."""
        return (self.attempts, self.vanished, self.losses, self.alone, self.fresh, self.interrupted, self.replays) != (
            before.attempts,
            before.vanished,
            before.losses,
            before.alone,
            before.fresh,
            before.interrupted,
            before.replays,
        )

    def returned(self) -> "Counters":
        """As they are when the message came back from a consumer that vanished.

        A message that was to run alone has its start on record already, so nothing is added for it.
        """
        return self if self.alone else msgspec.structs.replace(self, vanished=min(2, self.vanished + 1))

    def marked(self, by: str, at: float) -> "Counters":
        """As they are on record while the message runs alone: a start that never ends stays counted."""
        start = PastAttempt(self.charged + 1, at, "lost", f"started alone on {by} and never ended: that process vanished")
        return msgspec.structs.replace(self, losses=self.losses + 1, history=with_past(self.history, start))


UNTRIED = Counters()
"""Shared by every message that was never started, so that the ordinary case makes no object."""


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """One handing-over of a message by the broker. Ask for it as the handler's second parameter.

    `receipt` belongs to the broker: it finds the message by it when the delivery is settled. `native` is filled in only where
    the handler takes the Delivery. `is_tombstone` distinguishes a null from an empty body.
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
        return self.counters.vanished > 0 or self.counters.losses > 0

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


@dataclass(frozen=True, slots=True, init=False)
class MessageMetadata:
    """What is known about a message when one of its attempts has just failed.

    `attempt` is the number of the attempt that failed, from 1. `max_attempts` narrows the handler's limit, never widens it.
    `first_failure_time` is given as a datetime, which without a time zone is read as UTC, or as `time.time()` returns it.
    """

    message_id: str
    attempt: int
    max_attempts: int | None
    first_failure_time: datetime | None
    last_error: str | None

    def __init__(
        self,
        message_id: str,
        attempt: int = 1,
        max_attempts: int | None = None,
        first_failure_time: datetime | float | None = None,
        last_error: str | None = None,
    ) -> None:
        set_once = object.__setattr__  # it is frozen
        set_once(self, "message_id", message_id)
        set_once(self, "attempt", attempt)
        set_once(self, "max_attempts", max_attempts)
        set_once(self, "first_failure_time", None if first_failure_time is None else _moment(first_failure_time))
        set_once(self, "last_error", last_error)


def metadata_of(delivery: Delivery, failure: "Failure | None" = None) -> MessageMetadata:
    """What a policy may know about the attempt that has just failed."""
    first, started = delivery.counters.first_failed_at, failure is None or failure.started
    return MessageMetadata(
        message_id=delivery.id,
        attempt=delivery.attempt if started else max(1, delivery.counters.charged),
        first_failure_time=None if first is None else datetime.fromtimestamp(first, UTC),
        last_error=None if failure is None else f"{failure.type_name}: {failure.text}",
    )


def _moment(given: object) -> datetime:
    if isinstance(given, datetime):
        return given
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return datetime.fromtimestamp(given, UTC)
    except (ValueError, OverflowError, OSError):  # not a number, or far beyond any calendar
        pass
    raise ConfigError(
        f"first_failure_time must be a datetime or seconds since 1970, as time.time() gives them, got {given!r}. "
        "Milliseconds have to be divided by 1000."
    )
