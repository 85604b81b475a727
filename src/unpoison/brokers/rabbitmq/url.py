"""What does a RabbitMQ URL say?

amqp://user:password@host:5672/vhost, or amqps:// for TLS. What follows the question mark goes to the client in its own
terms (heartbeat, ssl_options …), except for three words of ours: `message_ttl`, the seconds after which a message that nobody has
started becomes a dead letter, `dlq_ttl`, those after which a dead letter may be dropped, and `management`, the address of the
management API, which only `unpoison doctor` asks.
"""

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

import pika

from unpoison.errors import ConfigError
from unpoison.port.broker_url import parse, without_secrets

FORM = "amqp://user:password@host:5672/vhost"
PORTS = {"amqp": 5672, "amqps": 5671}
CONNECT_TIMEOUT = 5.0
HEARTBEAT = 30


class Address(NamedTuple):
    """Where the server is and how to log in. `shown` has no password in it."""

    parameters: pika.URLParameters
    shown: str
    vhost: str
    message_ttl: float | None
    dlq_ttl: float | None = None
    management: str | None = None


def address(url: str) -> Address:
    parts = parse(url, FORM)
    places = parts.places(PORTS[parts.scheme], FORM, "localhost")
    if len(places) > 1:
        raise ConfigError(f"{parts.shown!r} names {len(places)} servers, and the RabbitMQ client takes one: {FORM}")
    options = dict(parse_qsl(parts.query))
    message_ttl, dlq_ttl = _seconds(options, "message_ttl"), _seconds(options, "dlq_ttl")
    options.pop("management", None)
    vhost = unquote(parts.path[1:]) or "/"
    place = parts.at(places)
    plain = f"{place.replace('://', f'://{parts.login}', 1)}/{quote(vhost, safe='')}?{urlencode(options)}"
    shown = f"{place}/{vhost}"
    try:
        parameters = pika.URLParameters(plain)
    except (ValueError, TypeError, AttributeError) as error:
        said = without_secrets(str(error), url)
        raise ConfigError(f"{shown!r} is not a URL that the RabbitMQ client understands: {said}. The form is {FORM}") from None
    parameters.connection_attempts = 1
    for name, value in (("socket_timeout", CONNECT_TIMEOUT), ("stack_timeout", 2 * CONNECT_TIMEOUT), ("heartbeat", HEARTBEAT)):
        if name not in options:
            setattr(parameters, name, value)
    return Address(parameters, shown, vhost, message_ttl, dlq_ttl, _management(parts.query))


def _management(query: str) -> str | None:
    """The address as it stands there: what is escaped in a plain one belongs to its name and password."""
    given = [part.partition("=")[2] for part in query.split("&") if part.startswith("management=")]
    return next((text if "://" in text else unquote(text) for text in given), None)


_LEFT_OUT = {"message_ttl": "let messages wait for as long as it takes", "dlq_ttl": "keep letters"}


def _seconds(options: dict[str, str], name: str) -> float | None:
    text = options.pop(name, None)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 4_294_967:
        raise ConfigError(
            f"{name} in the URL must be seconds between 0 and 4,294,967 (49 days), got {text!r}. "
            f"Leave it out to {_LEFT_OUT[name]}."
        )
    return value
