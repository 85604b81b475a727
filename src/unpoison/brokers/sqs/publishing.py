"""What became of each message that was published?

Messages are sent ten at a time, one request after the other. SQS answers for each of the ten; a request that got no answer may
have been carried out. After one that was not stored nothing more is sent: it would overtake it.
"""

from collections.abc import Mapping, Sequence

from unpoison.brokers.sqs import copies, writing
from unpoison.brokers.sqs.client import Denied, NoQueue
from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.writing import NOT_SENT, Copy, No
from unpoison.errors import BrokerUnavailable, PayloadError, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Published, Refused, not_sent, without_source

_REFUSALS = {
    NOT_SENT: Refusal.NOT_SENT,
    "InvalidMessageContents": Refusal.UNFIT,
    "AccessDenied": Refusal.NOT_PERMITTED,
    "AccessDeniedException": Refusal.NOT_PERMITTED,
    "MessageTooLong": Refusal.TOO_LARGE,
    "BatchRequestTooLong": Refusal.TOO_LARGE,
    "InvalidParameterValue": Refusal.UNFIT,
}


def publish(session: Session, messages: Sequence[Outgoing]) -> Published:
    refused = without_source(messages, session.topic)
    wanted: dict[int, Copy] = {}
    for number, message in enumerate(messages):
        if number not in refused:
            try:
                wanted[number] = copies.outgoing(session.topic(message.source), message)
            except PayloadError as error:
                refused[number] = not_sent(error, Refusal.TOO_LARGE)
    failed = _send(session, messages, wanted)
    created = tuple(session.created)
    session.created.clear()
    if not failed and not refused:
        return Published(created=created) if created else STORED
    refused |= {number: _refused(no) for number, no in failed.items() if no.is_certain}
    unknown = {number: _told(no) for number, no in failed.items() if not no.is_certain}
    return Published(refused, unknown, created)


def _send(session: Session, messages: Sequence[Outgoing], wanted: Mapping[int, Copy]) -> dict[int, No]:
    """Why some of these are not stored. If a queue was deleted in the meantime it is made anew, and what is left is sent."""
    failed = _in_order(session, wanted)
    if not any(isinstance(no.error, NoQueue) for no in failed.values()):
        return failed
    left = {number: wanted[number] for number, no in failed.items() if no.is_certain}
    try:
        for source in {messages[number].source for number in left}:
            session.remake(source)
    except BrokerUnavailable as error:
        return failed | {number: No("", str(error), error) for number in left}
    return {number: no for number, no in failed.items() if number not in left} | _in_order(session, left)


def _in_order(session: Session, wanted: Mapping[int, Copy]) -> dict[int, No]:
    numbers = list(wanted)
    return {numbers[index]: no for index, no in writing.store_in_order(session.link, list(wanted.values())).items()}


def _refused(no: No) -> Refused:
    if isinstance(no.error, NoQueue):
        return Refused(Refusal.NO_SUCH_SOURCE, _told(no))
    if isinstance(no.error, Denied):
        return Refused(Refusal.NOT_PERMITTED, _told(no))
    code = getattr(no.error, "code", no.code)
    return Refused(_REFUSALS.get(code, Refusal.OTHER), _told(no))


def _told(no: No) -> str:
    text = no.text.rstrip(".")
    return f"{text}." if no.error is not None or no.code == NOT_SENT else f"SQS did not store it: {text} ({no.code})."
