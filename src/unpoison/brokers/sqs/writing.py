"""Store messages, and know that they are stored: ten at a time and one mebibyte at most, and SQS answers for each of the ten. A
request that got no answer may have been carried out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from unpoison.brokers.sqs.connection import AT_ONCE, LIMIT, Connection, Denied, NoQueue, Refused
from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.port import broker

NOT_SENT = "not sent"


class Copy(NamedTuple):
    """A message to be stored."""

    queue: str
    """The URL of the queue."""
    entry: dict[str, Any]
    size: int
    letter_id: str | None = None
    """Of a copy that is a dead letter and says so."""


class No(NamedTuple):
    """Why a message was not stored."""

    code: str
    text: str
    error: BrokerUnavailable | None = None
    """What the whole request ended with, if it did."""
    is_certain: bool = True
    """Whether it is not stored for certain. What got no answer, or one that SQS itself takes the blame for, may be."""


def store(connection: Connection, copies: Sequence[Copy]) -> dict[int, No]:
    """Store these; returns once it is known of each whether it is stored, with why some are not. Raises if none is, for want of
    an answer or a right."""
    refused = _send_all(connection, copies, _requests(copies))
    errors = [no.error for no in refused.values() if no.error is not None]
    if errors and len(errors) == len(copies):
        raise errors[0]
    return refused


def store_each(connection: Connection, copies: Sequence[Copy]) -> dict[int, No]:
    """The same for copies that do not belong together: one for which SQS refuses a whole request stops no other. Never raises."""
    refused = _send_all(connection, copies, _requests(copies))
    left = {number: no for number, no in refused.items() if not isinstance(no.error, Refused)}
    return left | _send_all(connection, copies, [[number] for number in refused if number not in left])


def _send_all(connection: Connection, copies: Sequence[Copy], requests: Iterable[Sequence[int]]) -> dict[int, No]:
    answers = connection.all_of([partial(_send, connection, copies, numbers) for numbers in requests])
    return {number: no for answer in answers for number, no in answer.items()}


def store_in_order(connection: Connection, copies: Sequence[Copy]) -> dict[int, No]:
    """Store these one request after the other; returns why some are not stored. Never raises."""
    refused: dict[int, No] = {}
    for numbers in _requests(copies):
        if refused:  # what comes after would overtake what was refused
            why = next(iter(refused.values())).text
            refused.update(dict.fromkeys(numbers, No(NOT_SENT, f"It was not sent, since one before it was not stored: {why}")))
        else:
            refused = _send(connection, copies, numbers)
    return refused


def _requests(copies: Sequence[Copy]) -> Iterator[list[int]]:
    """Which go into one request: of one queue, ten at most, and no more bytes than it may have."""
    by_queue: dict[str, list[int]] = {}
    for number, each in enumerate(copies):
        by_queue.setdefault(each.queue, []).append(number)
    for numbers in by_queue.values():
        yield from _parts(copies, numbers)


def _parts(copies: Sequence[Copy], numbers: Iterable[int]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for number in numbers:
        if part and (len(part) == AT_ONCE or size + copies[number].size > LIMIT):
            yield part
            part, size = [], 0
        part.append(number)
        size += copies[number].size
    if part:
        yield part


def _send(connection: Connection, copies: Sequence[Copy], numbers: Sequence[int]) -> dict[int, No]:
    """Why some of these are not stored. Trouble with this request does not hide what others have stored."""
    entries = [{"Id": str(number), **copies[number].entry} for number in numbers]
    try:
        answer = connection.ask("send_message_batch", QueueUrl=copies[numbers[0]].queue, Entries=entries)
    except BrokerUnavailable as error:
        no = No("all of one request", str(error).rstrip("."), error, isinstance(error, Refused | NoQueue | Denied))
        return dict.fromkeys(numbers, no)
    return {int(each["Id"]): _no(each) for each in answer.get("Failed", ())}


def _no(entry: Mapping[str, Any]) -> No:
    return No(entry["Code"], entry.get("Message", "no reason given"), is_certain=bool(entry.get("SenderFault")))


_REFUSALS = {
    NOT_SENT: Refusal.NOT_SENT,
    "InvalidMessageContents": Refusal.UNFIT,
    "AccessDenied": Refusal.NOT_PERMITTED,
    "AccessDeniedException": Refusal.NOT_PERMITTED,
    "MessageTooLong": Refusal.TOO_LARGE,
    "BatchRequestTooLong": Refusal.TOO_LARGE,
    "InvalidParameterValue": Refusal.UNFIT,
}


def why(no: No) -> broker.Refused | str:
    """Why it is not stored, or as text why that is not known."""
    text = no.text.rstrip(".")
    told = f"{text}." if no.error is not None or no.code == NOT_SENT else f"SQS did not store it: {text} ({no.code})."
    if not no.is_certain:
        return told
    if isinstance(no.error, NoQueue):
        return broker.Refused(Refusal.NO_SUCH_SOURCE, told)
    if isinstance(no.error, Denied):
        return broker.Refused(Refusal.NOT_PERMITTED, told)
    return broker.Refused(_REFUSALS.get(getattr(no.error, "code", no.code), Refusal.OTHER), told)
