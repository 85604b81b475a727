"""How are messages stored, all or none?

As one transaction (MULTI): the server carries it out only when its last word has arrived. In a cluster there is one for each
slot, so that messages to several sources are stored source by source. If a connection breaks before the answer, nobody knows
whether that last word had arrived.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence

import redis
from redis.crc import key_slot

from unpoison.brokers.redis.connection import Command, Connection
from unpoison.brokers.redis.envelope import blob_of_message, fields_of
from unpoison.brokers.redis.errors import explained, word
from unpoison.brokers.redis.names import LATER, LATER_MESSAGES, MESSAGES, WAITING
from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.model.message import NO_HEADERS, Outgoing
from unpoison.port.broker import STORED, Published, Refused, not_sent

_REFUSALS = {
    "OOM": Refusal.NO_ROOM,
    "MISCONF": Refusal.NO_ROOM,
    "NOPERM": Refusal.NOT_PERMITTED,
    "NOAUTH": Refusal.NOT_PERMITTED,
    "READONLY": Refusal.NOT_PERMITTED,
}


def publish(link: Connection, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Published:
    refused: dict[int, Refused] = {}
    unknown: dict[int, str] = {}
    for numbers, batch in _by_slot(link, messages):
        outcome = _store(link, keys, batch)
        if outcome is not STORED:
            refused |= {numbers[n]: why for n, why in outcome.refused.items()}
            unknown |= {numbers[n]: why for n, why in outcome.unknown.items()}
    return Published(refused, unknown) if refused or unknown else STORED


def _store(link: Connection, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Published:
    """Messages of one slot, in one step."""
    source = messages[0].source
    try:
        if not link.is_connected(source):
            link.node(source)  # from here on something may have been sent
        commands = list(_commands(link, keys, messages))
    except BrokerUnavailable as error:
        return Published(dict.fromkeys(range(len(messages)), not_sent(error)))
    try:
        if len(commands) == 1:
            (done,) = queued = link.try_all(source, *commands)
        else:
            _, *queued, done = link.try_all(source, ("MULTI",), *commands, ("EXEC",))
    except BrokerUnavailable as error:
        return Published(unknown=dict.fromkeys(range(len(messages)), str(error)))
    if not isinstance(done, list):  # if one was refused, the last answer only says that there was one
        failed = next((answer for answer in (*queued, done) if isinstance(answer, redis.ResponseError)), None)
        return STORED if failed is None else Published(dict.fromkeys(range(len(messages)), _refused(link, failed)))
    if not any(isinstance(answer, redis.ResponseError) for answer in done):
        return STORED
    return _carried_out_in_part(link, messages, done)


def _carried_out_in_part(link: Connection, messages: Sequence[Outgoing], answers: Sequence[object]) -> Published:
    """Redis takes nothing back: if a key has become something else in between, the other commands were carried out."""
    lists, left = link.finder.address.lists, iter(answers)
    refused: dict[int, Refused] = {}
    for number, message in enumerate(messages):
        own = [next(left) for _ in range(2 if message.delay > 0 or message.source in lists else 1)]
        for answer in own:
            if isinstance(answer, redis.ResponseError):
                refused[number] = _refused(link, answer)
    return Published(refused)


def _refused(link: Connection, failed: redis.ResponseError) -> Refused:
    try:
        with explained(link.finder.address.shown):
            raise failed
    except BrokerUnavailable as error:
        return Refused(_REFUSALS.get(word(failed), Refusal.OTHER), str(error))


def _by_slot(link: Connection, messages: Sequence[Outgoing]) -> Sequence[tuple[Sequence[int], Sequence[Outgoing]]]:
    """The messages of each slot, with their positions in all."""
    if not link.finder.is_cluster:
        return [(range(len(messages)), messages)] if messages else []
    found: dict[int, list[int]] = {}
    for number, message in enumerate(messages):
        found.setdefault(key_slot(message.source.encode()), []).append(number)
    return [(numbers, [messages[number] for number in numbers]) for numbers in found.values()]


def _commands(link: Connection, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Iterator[Command]:
    lists, now = link.finder.address.lists, -1.0
    for n, message in enumerate(messages):
        source = message.source
        if message.delay <= 0 and source not in lists:
            if message.key is None and message.headers is NO_HEADERS:
                yield ("XADD", source, "*", b"id", message.id, b"body", message.body)
            else:
                yield ("XADD", source, "*", *fields_of(message))
            continue
        if now < 0:
            seconds, micros = link.ask(source, ("TIME",))[0]  # the server's clock: ours may be wrong
            now = int(seconds) * 1000 + int(micros) / 1000
        no = uuid.uuid4().hex
        # What is published to a list does not go into the list, which holds bodies only: it waits in a place of our own.
        due, stored = (WAITING, MESSAGES) if source in lists else (LATER, LATER_MESSAGES)
        yield ("HSET", keys[source][stored], no, blob_of_message(message))
        # Several that become due in the same moment keep their order, by fractions of a millisecond.
        yield ("ZADD", keys[source][due], repr(now + message.delay * 1000 + (n % 4096) / 4096), no)
