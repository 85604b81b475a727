"""How are messages stored, all or none?

As one transaction (MULTI): the server carries it out only when its last word has arrived. In a cluster there is one for each
slot, so that messages to several sources are stored source by source.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence

from redis.crc import key_slot

from unpoison.brokers.redis.connection import Link
from unpoison.brokers.redis.envelope import blob_of_message, fields_of
from unpoison.brokers.redis.explaining import explained
from unpoison.brokers.redis.keys import LATER, LATER_MESSAGES, MESSAGES, WAITING
from unpoison.brokers.redis.nodes import Command
from unpoison.message import NO_HEADERS, Outgoing


def publish(link: Link, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> None:
    for batch in _by_slot(link, messages):
        commands = list(_commands(link, keys, batch))
        if len(commands) > 1:
            *queued, done = link.try_all(batch[0].source, ("MULTI",), *commands, ("EXEC",))
            # If one was refused, the last answer only says that there was one.
            answers = [*queued, *(done if isinstance(done, list) else [done])]
        else:
            answers = link.try_all(batch[0].source, *commands)
        with explained(link.finder.address.shown):
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer


def _by_slot(link: Link, messages: Sequence[Outgoing]) -> Sequence[Sequence[Outgoing]]:
    if not link.finder.is_cluster:
        return [messages] if messages else []
    found: dict[int, list[Outgoing]] = {}
    for message in messages:
        found.setdefault(key_slot(message.source.encode()), []).append(message)
    return list(found.values())


def _commands(link: Link, keys: Mapping[str, Sequence[str]], messages: Sequence[Outgoing]) -> Iterator[Command]:
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
