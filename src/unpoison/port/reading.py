"""What becomes of a message that its adapter cannot read?

Anyone who may write to a queue may write anything there, and our own code has faults. One message must not end a consumer, so
**reading a message never raises**: every adapter reads what its broker handed out through `read_all` or `read_one`. What cannot
be read is delivered as `Unreadable`: the consumer never starts it and settles it as a dead letter, with its bytes and its
native envelope.

An ordinary batch pays for one `try`. Only a batch in which reading failed is read again, message by message.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import Failure, cap, describe
from unpoison.model.message import Counters, Delivery, Message, Native, native_of_text
from unpoison.model.message import as_text as as_text  # noqa: PLC0414 - adapters that read messages need it
from unpoison.model.verdict import ErrorClassification

FETCH_BYTES = 64 * 1024 * 1024
"""A fetch ends early once it has read this much: a limit by count alone lets large bodies fill the memory."""

RULE = "unreadable"
ENVELOPE_LIMIT = 8_000
"""Characters of the native envelope that a dead letter shows."""

Raw = TypeVar("Raw")
Read = TypeVar("Read")
Other = TypeVar("Other")


class Unreadable(Delivery, frozen=True, kw_only=True):
    """A message that could not be read: it is never started, only settled. `envelope` shows what came beside the body."""

    failure: Failure
    envelope: str


def read_all(
    natives: Sequence[Raw],
    together: Callable[[Sequence[Raw]], list[Read]],
    one: Callable[[Raw], Read],
    otherwise: Callable[[Raw, Exception], Read],
) -> list[Read]:
    """What these native messages say, in their order. Never raises.

    `together` reads them the fast way and must have no effects: if it raises, it is dropped and `one` reads each of them.
    `otherwise` stands in for a message that `one` cannot read; it uses the receipt and the body and interprets nothing.
    """
    try:
        return together(natives)
    except Exception:
        return [read_one(native, one, otherwise) for native in natives]


def read_one(native: Raw, one: Callable[[Raw], Read], otherwise: Callable[[Raw, Exception], Other]) -> Read | Other:
    """As `read_all`, for a single message."""
    try:
        return one(native)
    except Exception as error:
        return otherwise(native, error)


def with_native(delivery: Delivery, tell: Callable[[Delivery], Native] | None) -> Delivery:
    """The delivery for a handler that takes it: with what the broker says about it, where the broker can tell."""
    if isinstance(delivery, Unreadable):
        return delivery
    d, native = delivery, _as_delivered(delivery) if tell is None else read_one(delivery, tell, _as_delivered)
    return Delivery(d.receipt, d.source, d.id, d.body, d.key, d.headers, d.counters, d.is_tombstone, native)


def _as_delivered(delivery: Delivery, _: Exception | None = None) -> Native:
    return native_of_text(delivery.key, delivery.headers)


def unreadable(receipt: object, source: str, id_: str, body: object, envelope: object, error: Exception) -> Unreadable:
    """The delivery of a message that could not be read because of this error."""
    return Unreadable(
        receipt=receipt,
        source=source,
        id=id_,
        body=as_bytes(body),
        counters=Counters(),  # not UNTRIED: the consumer looks more closely at everything else
        is_tombstone=body is None,
        failure=failure_of(error),
        envelope=cap(repr(envelope), ENVELOPE_LIMIT),
    )


def unreadable_letter(letter_id: str, state: str, message: Message, error: Exception) -> DeadLetter:
    """Stands for a dead letter that cannot be read: it can be seen, replayed and discarded like any other."""
    name, text, traceback = describe(error)
    rule = f"{RULE}: what was noted about this dead letter cannot be read"
    return DeadLetter(
        id=letter_id,
        state=state,
        message=message,
        attempts=0,
        classification=str(ErrorClassification.UNKNOWN),
        rule=rule,
        reason=f"{rule}; why it was given up is not known",
        error_type="unpoison.Unreadable",
        error=f"Reading the letter raised {name}: {text}",
        traceback=traceback,
        first_failed_at=0.0,
        last_failed_at=0.0,
    )


def body_bytes(deliveries: Sequence[Delivery]) -> int:
    """How many bytes the bodies have together."""
    return sum(map(len, map(attrgetter("body"), deliveries)))


def first_within(sizes: Iterable[int], most: int) -> int:
    """How many of the first ones have so many bytes together; the last of them may exceed it."""
    count = 0
    for size in sizes:
        if most <= 0:
            break
        count, most = count + 1, most - max(1, size)
    return count


def text_or_bytes(value: bytes) -> str | bytes:
    """A header for people to see: as text where it is text, else as it is."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def as_bytes(body: object) -> bytes:
    """A body of whatever type the broker has given it."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return b"" if body is None else str(body).encode("utf-8", "surrogatepass")


def failure_of(error: Exception, doing: str = "reading its envelope") -> Failure:
    """What a message is judged as that could not be started because of a fault of our own, or of its sender."""
    name, text, traceback = describe(error)
    return Failure(
        classification=ErrorClassification.INVALID,
        rule=RULE,
        type_name="unpoison.Unreadable",
        text=f"It was not started: {doing} raised {name}: {text}",
        traceback=traceback,
        charged=False,
        started=False,
    )
