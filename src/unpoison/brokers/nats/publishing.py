"""What became of each message that was published?

The stream that stored a message answers, and a server that did not store it says why. If the connection is lost first, or the
time is over, the message may be stored.
"""

from collections.abc import Mapping, Sequence

from unpoison.brokers.nats import copies
from unpoison.brokers.nats.link import NO_RESPONDERS
from unpoison.brokers.nats.session import Session
from unpoison.brokers.nats.topology import Topic
from unpoison.brokers.nats.writing import DENIED, NO_ANSWER, NOT_SENT, Copy, No
from unpoison.errors import BrokerUnavailable, ConfigError, PayloadError, Refusal
from unpoison.model.message import Outgoing
from unpoison.port.broker import STORED, Published, Refused, not_sent, without_source

_REFUSALS = {
    DENIED: Refusal.NOT_PERMITTED,
    NOT_SENT: Refusal.NOT_SENT,
    NO_RESPONDERS: Refusal.NO_SUCH_SOURCE,
    **dict.fromkeys((10054, 10097), Refusal.TOO_LARGE),  # body, headers
    **dict.fromkeys((10077, 10047, 10028, 10023, 10002), Refusal.NO_ROOM),  # stream, disk, memory, server, account
}


def publish(session: Session, messages: Sequence[Outgoing]) -> Published:
    """Store these; says what became of each. Raises BrokerUnavailable only if nothing was sent."""
    topics: dict[str, Topic] = {}
    refused = without_source(messages, lambda source: topics.update({source: session.topic(source)}))
    limit = session.link().max_payload
    wanted: dict[int, Copy] = {}
    for number, message in enumerate(messages):
        if number not in refused:
            try:
                wanted[number] = copies.outgoing(session, topics[message.source], message, limit)
            except PayloadError as error:
                refused[number] = not_sent(error, Refusal.TOO_LARGE)
            except BrokerUnavailable as error:
                refused[number] = not_sent(error)
    failed = _send(session, messages, wanted)
    created = tuple(session.created)
    session.created.clear()
    if not failed and not refused:
        return Published(created=created) if created else STORED
    unknown = {number: _told(why) for number, why in failed.items() if why.code == NO_ANSWER}
    answered = {number: why for number, why in failed.items() if why.code != NO_ANSWER}
    refused |= {number: Refused(_REFUSALS.get(why.code, Refusal.OTHER), _told(why)) for number, why in answered.items()}
    return Published(refused, unknown, created)


def _send(session: Session, messages: Sequence[Outgoing], wanted: Mapping[int, Copy]) -> dict[int, No]:
    """Why some of these are not stored. What no stream took is sent once more, after its stream was made anew."""
    numbers = list(wanted)
    failed = {numbers[index]: why for index, why in session.store(list(wanted.values())).items()}
    lost = [number for number, why in failed.items() if why.code == NO_RESPONDERS]
    if not lost:
        return failed
    try:
        for source in {messages[number].source for number in lost}:
            session.remake(source)
        again = session.store([wanted[number] for number in lost])
    except (ConfigError, BrokerUnavailable) as error:
        return failed | dict.fromkeys(lost, No(NO_RESPONDERS, str(error)))
    stored = [number for index, number in enumerate(lost) if index not in again]
    failed |= {lost[index]: why for index, why in again.items()}
    return {number: why for number, why in failed.items() if number not in stored}


def _told(why: No) -> str:
    text = why.text.rstrip(".")
    return f"NATS did not store it: {text} (code {why.code})." if why.code > 0 else f"{text}."
