"""The errors that unpoison raises, and those that a handler raises to steer it.

UnpoisonError
├── ConfigError            an option, a URL or an app that cannot work; found at start-up
│   └── MissingExtra       a package that this broker needs is not installed
├── CapabilityError        the broker cannot do this
├── BrokerUnavailable      the broker does not answer, or refuses to write
│   ├── BulkStopped        it stopped answering while a whole DLQ was replayed or purged
│   └── PublishFailed      some messages are not stored, or may not be; it says which, and why
├── StoreUnavailable       the store does not answer: consumers go on as if there were none
├── OwnershipLost          another consumer has the message now; nothing was settled
├── PayloadError           a payload that cannot be sent
├── FilterError            a filter that cannot be read; it points at the place
├── OriginalUnavailable    the original of a redacted letter is not kept, or cannot be decrypted
├── UnfinishedHandler      a handler returned a coroutine or generator instead of running it
└── LetterNotFound         no such dead letter, or it was already replayed, discarded or purged

Steering, raised by handlers: RetryLater, Throttled, Permanent, Discard
RemoteFailure, given to hooks: stands for an exception of another process
"""

import enum
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple


class UnpoisonError(Exception):
    """Every error of unpoison's own."""


class ConfigError(UnpoisonError):
    """Something in the configuration cannot work. Raised at start-up, never at the first message."""


class MissingExtra(ConfigError):
    """A required package is not installed."""

    def __init__(self, needed_by: str, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{needed_by} needs the package {package!r}, which is not installed. Run: pip install 'unpoison[{extra}]'"
        )


class CapabilityError(UnpoisonError):
    """The broker cannot do this."""


class BrokerUnavailable(UnpoisonError):
    """The broker does not answer, or refuses to write. No message is lost: unconfirmed messages are still queued."""


PAUSES = (BrokerUnavailable, ConfigError)
"""Errors that pause a source and do not end its process. In the middle of a run a ConfigError means that something has gone
since the start, or is no longer permitted. Once it is restored, the consumer continues by itself."""


class BulkStopped(BrokerUnavailable):
    """Replaying or purging a whole DLQ stopped early, after `done` of `total` letters."""

    def __init__(self, source: str, verb: str, done: int, total: int, at_once: int, cause: object) -> None:
        self.source, self.done, self.total = source, done, total
        letters = "dead letter" if total == 1 else "dead letters"
        super().__init__(
            f"{verb.capitalize()} {done:,} of {total:,} {letters} of {source!r}, then it stopped: {cause} Nothing is "
            f"lost: each of the {at_once:,} or fewer in progress is either {verb} or still there, and the rest is "
            f"untouched. To go on, run it again."
        )


class Refusal(enum.Enum):
    """Why a message is certainly not stored."""

    TOO_LARGE = "too large"
    UNFIT = "unfit"
    """The broker cannot store it as it is, whatever its size."""
    NO_SUCH_SOURCE = "no such source"
    """It does not exist and could not be created, or it cannot be used."""
    NOT_PERMITTED = "not permitted"
    NO_ROOM = "no room"
    """The queue, the disk or the memory of the broker is full."""
    OTHER = "other"
    """The broker refused it for another reason."""
    NOT_SENT = "not sent"
    """Nothing is wrong with it: the broker was unavailable, or another message of the batch prevented it from being sent."""

    @property
    def is_about_the_message(self) -> bool:
        """Whether it would be refused again. All others can be sent again unchanged, once the broker is repaired."""
        return self in (Refusal.TOO_LARGE, Refusal.UNFIT)


class PublishedMessage(NamedTuple):
    """The outcome for one message. `position` is its place among the published payloads, from 0."""

    position: int
    id: str
    reason: str = ""
    refusal: Refusal | None = None


class PublishFailed(BrokerUnavailable):
    """Not all published messages are stored. Each message is in one of three tuples:

    `stored`, `refused` (certainly not stored) or `unknown` (no answer came, so it may be stored). To send an unknown one
    again, use the same id: if it was stored the first time, consumers get two messages with one id.
    """

    def __init__(
        self,
        source: str,
        stored: Iterable[PublishedMessage] = (),
        refused: Iterable[PublishedMessage] = (),
        unknown: Iterable[PublishedMessage] = (),
    ) -> None:
        self.source, self.stored, self.refused, self.unknown = source, tuple(stored), tuple(refused), tuple(unknown)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.source, self.stored, self.refused, self.unknown)

    @property
    def is_about_the_messages(self) -> bool:
        """Whether the messages are at fault, so that sending them again would end the same way."""
        blamed = [each for each in self.refused if each.refusal is not Refusal.NOT_SENT]
        return not self.unknown and bool(blamed) and all(each.refusal and each.refusal.is_about_the_message for each in blamed)

    def _text(self) -> str:
        count = len(self.stored) + len(self.refused) + len(self.unknown)
        again = "To be certain, send again under the same id; consumers may then get it twice."
        if count == 1 and self.unknown:
            what = f"It is unknown whether message {self.unknown[0].id!r} for {self.source!r} is stored."
            return f"{what} {_because(self.unknown)} {again}"
        if count == 1:
            return f"Message {self.refused[0].id!r} for {self.source!r} is not stored. {_because(self.refused)}"
        if len(self.refused) == count:
            return f"None of {count:,} messages for {self.source!r} is stored. {_because(self.refused)}"
        numbers = f"{len(self.stored):,} stored, {len(self.refused):,} refused, {len(self.unknown):,} unknown"
        told = f"Of {count:,} messages for {self.source!r}: {numbers}."
        if self.refused:
            told += f" Refused, certainly not stored: {_because(self.refused)}"
        if self.unknown:
            told += f" Unknown, perhaps stored: {_because(self.unknown)} {again}"
        return told


def _because(messages: Sequence[PublishedMessage]) -> str:
    """Each reason once, with the positions it applies to; messages that were not sent come last."""
    by_reason: dict[str, list[int]] = {}
    for each in sorted(messages, key=lambda each: each.refusal is Refusal.NOT_SENT):
        by_reason.setdefault(each.reason, []).append(each.position)
    if len(by_reason) == 1:
        return _sentence(next(iter(by_reason)))
    told = [f"{_sentence(reason)} (at {ranges(positions)})" for reason, positions in by_reason.items()]
    more = f" and {len(told) - MOST_REASONS:,} more reasons" if len(told) > MOST_REASONS else ""
    return " ".join(told[:MOST_REASONS]) + more


MOST_REASONS = 3


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def ranges(positions: Sequence[int]) -> str:
    """0, 3-7 and so on, the first few of them."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    told = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(told[:5]) + (", …" if len(told) > 5 else "")


class StoreUnavailable(UnpoisonError):
    """The store does not answer, or refuses to write. Consumers go on as if there were none."""


class OwnershipLost(UnpoisonError):
    """This consumer's messages were given to another one, which runs them now. Settling them here does nothing."""


class PayloadError(UnpoisonError, ValueError):
    """A payload that cannot be sent: it is refused before anything is written."""


class OriginalUnavailable(UnpoisonError):
    """The original of a redacted letter is not kept, or cannot be decrypted here."""


class FilterError(UnpoisonError, ValueError):
    """A filter that cannot be read. `problem` says why, `start` and `end` where in `text`; `picture` shows that."""

    def __init__(self, problem: str, text: str = "", start: int = 0, end: int = 0, picture: str = "") -> None:
        self.problem, self.text, self.start, self.end, self.picture = problem, text, start, end, picture
        super().__init__(f"{problem}\n{picture}".rstrip("\n"))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.problem, self.text, self.start, self.end, self.picture)


class UnfinishedHandler(UnpoisonError):
    """The handler returned a coroutine, another awaitable or a generator, so its work was not done."""


class LetterNotFound(UnpoisonError, LookupError):
    """No dead letter with this id waits in the DLQ."""

    def __init__(self, letter_id: str, source: str, state: str | None = None, others: Sequence[str] = ()) -> None:
        self.letter_id, self.source, self.state, self.others = letter_id, source, state, tuple(others)
        what = f"Dead letter {letter_id!r} of {source!r} " + (f"was already {state}" if state else "does not exist")
        if others:
            what = (
                f"{len(others)} dead letters of {source!r} have the message id {letter_id!r}: name one of {', '.join(others[:5])}"
            )
        super().__init__(f"{what}. To see what is there: unpoison dlq ls --state all, with --app or --url")


class Steering(Exception):
    """What a handler raises to decide what happens next."""


class RetryLater(Steering):
    """Start this message again after `after` seconds. The start that raises it is not charged as an attempt.

    `dependency` names what does not work: many messages that name it are an outage, and then wait for its end.
    """

    def __init__(self, after: float | timedelta, dependency: str | None = None) -> None:
        self.after, self.dependency = seconds(after, "RetryLater(after=…)"), dependency
        super().__init__(f"retry after {self.after:g} s")


class Throttled(Steering):
    """The dependency asks to slow down. Not charged; without `retry_after` the backoff decides.

    Once several messages were throttled on one `dependency` within seconds, their source slows down.
    """

    def __init__(
        self, retry_after: float | timedelta | None = None, reason: str = "throttled", dependency: str | None = None
    ) -> None:
        self.retry_after = None if retry_after is None else seconds(retry_after, "Throttled(retry_after=…)")
        self.dependency = dependency
        super().__init__(reason)


class Permanent(Steering):
    """No retry can cure this: the message becomes a dead letter at once."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Discard(Steering):
    """Drop this message on purpose. It is counted and logged, not kept."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def seconds(value: float | timedelta, name: str) -> float:
    """A duration given as seconds or timedelta, as seconds."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise ConfigError(f"{name} must be a duration of 0 seconds or more, got {value!r}. Use seconds or a timedelta.")
    return float(number)


class RemoteFailure(Exception):
    """Stands for an exception that no longer exists: it was raised in another process, or that process died."""

    def __init__(self, type_name: str, text: str, traceback: str = "") -> None:
        self.type_name, self.text, self.traceback = type_name, text, traceback
        super().__init__(f"{type_name}: {text}")
