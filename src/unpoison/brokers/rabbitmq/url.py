"""Read a RabbitMQ URL.

amqp://user:password@host:5672/vhost, or amqps:// for TLS. What follows the question mark goes to the client in its own
terms (heartbeat, ssl_options …), except for three words of ours: `message_ttl`, the seconds after which a message that nobody has
started becomes a dead letter, `dlq_ttl`, those after which a dead letter may be dropped, and `management`, the address of the
management API, which only `unpoison doctor` asks.
"""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode

import pika

from unpoison.errors import ConfigError
from unpoison.port.broker_url import Options, parse, without_secrets

FORM = "amqp://user:password@host:5672/vhost"
PORTS = {"amqp": 5672, "amqps": 5671}
CONNECT_TIMEOUT = 5.0
HEARTBEAT = 30
MOST_SECONDS = 2**32 // 1000
"""A time to live is a number of milliseconds in four bytes."""

OURS = ("message_ttl", "dlq_ttl", "management")


class Address(NamedTuple):
    """Where the server is and how to log in. `shown` has no password in it."""

    parameters: pika.URLParameters
    shown: str
    vhost: str
    message_ttl: float | None
    dlq_ttl: float | None = None
    management: str | None = None
    dlqs: Mapping[str, str] = {}
    """The DLQs that are not `<queue>.dlq`, by source."""


def address(url: str) -> Address:
    parts = parse(url, FORM)
    places = parts.places(PORTS[parts.scheme], FORM, "localhost")
    if len(places) > 1:
        raise ConfigError(f"{parts.shown!r} names {len(places)} servers, and the RabbitMQ client takes one: {FORM}")
    if parts.user is not None and parts.password is None:
        raise ConfigError(f"{parts.shown!r} names a user without a password, and RabbitMQ asks for both: {FORM}")
    clients = [name for name in parts.options() if name not in OURS]  # the client refuses those that it does not know
    options = Options(parts, OURS, clients)
    vhost = unquote(parts.path[1:]) or "/"
    place = parts.at(places)
    plain = f"{place.replace('://', f'://{parts.login}', 1)}/{quote(vhost, safe='')}?{urlencode(options.passed_on)}"
    shown = f"{place}/{vhost}"
    try:
        parameters = pika.URLParameters(plain)
    except (ValueError, TypeError, AttributeError) as error:
        said = without_secrets(str(error), url)
        raise ConfigError(f"{shown!r} is not a URL that the RabbitMQ client understands: {said}. The form is {FORM}") from None
    parameters.connection_attempts = 1
    for name, value in (("socket_timeout", CONNECT_TIMEOUT), ("stack_timeout", 2 * CONNECT_TIMEOUT), ("heartbeat", HEARTBEAT)):
        if name not in clients:
            setattr(parameters, name, value)
    message_ttl = _ttl(options, "message_ttl", "Leave it out to let messages wait for as long as it takes.")
    dlq_ttl = _ttl(options, "dlq_ttl", "Leave it out to keep letters.")
    return Address(parameters, shown, vhost, message_ttl, dlq_ttl, _management(parts.query), parts.dlqs)


def _ttl(options: Options, name: str, meaning: str) -> float | None:
    return options.seconds(name, 0.0, 0.001, MOST_SECONDS, meaning) if name in options else None


def _management(query: str) -> str | None:
    """The address as it stands there: what is escaped in a plain one belongs to its name and password."""
    given = [part.partition("=")[2] for part in query.split("&") if part.startswith("management=")]
    return next((text if "://" in text else unquote(text) for text in given), None)
