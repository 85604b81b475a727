"""Publish messages, all or none, in one transaction (MULTI … EXEC).

In a cluster there is one transaction for each slot, so messages to several sources are stored source by source. If the
connection breaks before the answer, it is not known whether EXEC reached the server.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence

import redis
from redis.crc import key_slot

from unpoison.brokers.redis.connection import Command, Connection
from unpoison.brokers.redis.envelope import blob_of_message, fields_of
from unpoison.brokers.redis.errors import refused
from unpoison.brokers.redis.names import LATER, LATER_MESSAGES, MESSAGES, WAITING
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import NO_HEADERS, Outgoing
from unpoison.port.broker import STORED, Published, Refused, not_sent


def publish(connection: Connection, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Published:
    failed: dict[int, Refused] = {}
    unknown: dict[int, str] = {}
    for numbers, batch in _by_slot(connection, messages):
        outcome = _store(connection, keys, batch)
        if outcome is not STORED:
            failed |= {numbers[n]: why for n, why in outcome.refused.items()}
            unknown |= {numbers[n]: why for n, why in outcome.unknown.items()}
    return Published(failed, unknown) if failed or unknown else STORED


def _store(connection: Connection, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Published:
    """Store messages of one slot in one step."""
    source = messages[0].source
    try:
        if not connection.is_connected(source):
            connection.node(source)  # a failure here is certain: nothing was sent
        commands = list(_commands(connection, keys, messages))
    except BrokerUnavailable as error:
        return Published(dict.fromkeys(range(len(messages)), not_sent(error)))
    try:
        if len(commands) == 1:
            (done,) = queued = connection.try_all(source, *commands)
        else:
            _, *queued, done = connection.try_all(source, ("MULTI",), *commands, ("EXEC",))
    except BrokerUnavailable as error:
        return Published(unknown=dict.fromkeys(range(len(messages)), str(error)))
    if not isinstance(done, list):  # if a command was refused, the answer to EXEC does not say which
        failed = next((answer for answer in (*queued, done) if isinstance(answer, redis.ResponseError)), None)
        if failed is None:
            return STORED
        return Published(dict.fromkeys(range(len(messages)), refused(connection.address.shown, failed)))
    if not any(isinstance(answer, redis.ResponseError) for answer in done):
        return STORED
    return _stored_in_part(connection, messages, done)


def _stored_in_part(connection: Connection, messages: Sequence[Outgoing], answers: Sequence[object]) -> Published:
    """Redis rolls nothing back: if one command failed, because its key holds another type, the others were carried out."""
    lists, left = connection.address.lists, iter(answers)
    found: dict[int, Refused] = {}
    for number, message in enumerate(messages):
        own = [next(left) for _ in range(2 if message.delay > 0 or message.source in lists else 1)]
        for answer in own:
            if isinstance(answer, redis.ResponseError):
                found[number] = refused(connection.address.shown, answer)
    return Published(found)


def _by_slot(connection: Connection, messages: Sequence[Outgoing]) -> Sequence[tuple[Sequence[int], Sequence[Outgoing]]]:
    """The messages of each slot, with their positions in the whole."""
    if not connection.finder.is_cluster:
        return [(range(len(messages)), messages)] if messages else []
    found: dict[int, list[int]] = {}
    for number, message in enumerate(messages):
        found.setdefault(key_slot(message.source.encode()), []).append(number)
    return [(numbers, [messages[number] for number in numbers]) for numbers in found.values()]


def _commands(connection: Connection, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Iterator[Command]:
    lists, now = connection.address.lists, -1.0
    for n, message in enumerate(messages):
        source = message.source
        if message.delay <= 0 and source not in lists:
            if message.key is None and message.headers is NO_HEADERS:
                yield ("XADD", source, "*", b"id", message.id, b"body", message.body)
            else:
                yield ("XADD", source, "*", *fields_of(message))
            continue
        if now < 0:
            seconds, micros = connection.ask(source, ("TIME",))[0]  # the server's clock, as the scripts use it
            now = int(seconds) * 1000 + int(micros) / 1000
        no = uuid.uuid4().hex
        # A message published to a list does not go into the list, which holds only bodies: it goes to the waiting ones.
        due, stored = (WAITING, MESSAGES) if source in lists else (LATER, LATER_MESSAGES)
        yield ("HSET", keys[source][stored], no, blob_of_message(message))
        # Fractions of a millisecond keep the order of messages that are due at the same time.
        yield ("ZADD", keys[source][due], repr(now + message.delay * 1000 + (n % 4096) / 4096), no)
