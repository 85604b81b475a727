"""What does a letter say that RabbitMQ itself or another program put into the DLQ, and where does it go back to?

RabbitMQ gives up the message as it is, and tells why in `x-death`. A program may have put an envelope there instead: then the
message is what is inside. It goes back to its queue by the default exchange, so that no other queue gets it again.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.brokers.rabbitmq import names, properties
from unpoison.brokers.rabbitmq.envelope import Envelope
from unpoison.brokers.rabbitmq.properties import Header, HeaderTable, header
from unpoison.brokers.rabbitmq.wire import short
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message, as_text
from unpoison.port.foreign import celery, json_form, x_death
from unpoison.port.foreign.told import UNKNOWN_RULE, Content, Facts, Told
from unpoison.port.reading import read_one

_READ = frozenset(name.encode() for name in (*x_death.HEADERS, *celery.HEADERS))


def told(source: str, headers: Mapping[bytes, bytes], body: bytes) -> Told | None:
    """What these headers and this body say; None if it is nothing."""
    return read_one(headers, lambda headers: _told(source, headers, body), lambda *_: None)


def _told(source: str, headers: Mapping[bytes, bytes], body: bytes) -> Told | None:
    decoded = {as_text(name): _value(raw) for name, raw in headers.items() if name in _READ}
    found = x_death.read(decoded, source) or json_form.read(body)
    return celery.with_task(found, celery.facts(decoded, body), UNKNOWN_RULE)


def _value(raw: bytes) -> Any:
    return read_one(raw, properties.value, lambda *_: None)


def body(carried: bytes, found: Told | None) -> bytes:
    """The original one."""
    return carried if found is None or found.content is None else found.content.body


def opened(carried: Envelope, found: Told | None) -> Envelope:
    """What the original message had beside its body, as far as that is told."""
    if found is None or found.content is None:
        return carried
    message = found.message(Message("", "", b"", carried.key, carried.headers))
    inside = _properties(carried.properties, found.content)
    return msgspec.structs.replace(carried, key=message.key, headers=message.headers, properties=inside)


def _properties(carried: properties.Properties, content: Content) -> properties.Properties:
    others, entries = dict(carried.others), carried.headers
    if content.content_type:
        others |= {"content_type": short(content.content_type), "content_encoding": short("utf-8")}
    if content.headers is not None:
        kept = tuple(each for each in entries.entries if each.name.startswith(b"x-unpoison-"))
        entries = HeaderTable((*kept, *(_header(name, text) for name, text in content.headers.items())))
    return msgspec.structs.replace(carried, headers=entries, others=tuple(others.items()))


def _header(name: str, text: str) -> Header:
    """The name of a header has 255 bytes at most."""
    return header(name.encode()[:255], text)


def origin(source: str, found: Told) -> str:
    """The queue that the message came from. Another one of unpoison's own held it for its source."""
    return source if not found.source or found.source in names.helpers(source) else found.source


def letter(message: Message, original: Envelope, found: Told | None) -> DeadLetter:
    """As far as it says something."""
    place: Facts = {"source": message.source if found is None else origin(message.source, found)}
    if original.route:
        place |= {"exchange": original.route[0], "routing_key": original.route[1]}
        place |= {} if original.expiration is None else {"expiration": original.expiration}
    if found is None:
        found = Told(rule=UNKNOWN_RULE, error_type="rabbitmq.unknown", error=UNKNOWN_RULE)
    shown = found.letter(message, "rabbitmq.Unknown", 0.0, original.counters)
    return msgspec.structs.replace(shown, message=message, original=place | shown.original)
