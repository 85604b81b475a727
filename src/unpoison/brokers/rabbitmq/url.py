"""What does a RabbitMQ URL say?

amqp://user:password@host:5672/vhost, or amqps:// for TLS. What follows the question mark goes to the client in its own
terms (heartbeat, ssl_options …), except for two words of ours: `message_ttl`, the seconds after which a dead letter may be
dropped, and `management`, the address of the management API, which only `unpoison doctor` asks.
"""

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pika

from unpoison.errors import ConfigError

CONNECT_TIMEOUT = 5.0
HEARTBEAT = 30


class Address(NamedTuple):
    """Where the server is and how to log in. `shown` has no password in it."""

    parameters: pika.URLParameters
    shown: str
    vhost: str
    message_ttl: float | None
    management: str | None = None


def address(url: str) -> Address:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    ttl, _ = options.pop("message_ttl", None), options.pop("management", None)
    vhost = unquote(parts.path[1:]) or "/"
    plain = parts._replace(query=urlencode(options), path="/" + quote(vhost, safe="")).geturl()
    shown = (
        f"{parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}/{vhost}"
    )
    try:
        parameters = pika.URLParameters(plain)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{shown!r} is not a URL that the RabbitMQ client understands: {error}") from None
    parameters.connection_attempts = 1
    for name, value in (("socket_timeout", CONNECT_TIMEOUT), ("stack_timeout", 2 * CONNECT_TIMEOUT), ("heartbeat", HEARTBEAT)):
        if name not in options:
            setattr(parameters, name, value)
    return Address(parameters, shown, vhost, None if ttl is None else _seconds(ttl), _management(parts.query))


def _management(query: str) -> str | None:
    """The address as it stands there: what is escaped in a plain one belongs to its name and password."""
    given = [part.partition("=")[2] for part in query.split("&") if part.startswith("management=")]
    return next((text if "://" in text else unquote(text) for text in given), None)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 4_294_967:
        raise ConfigError(
            f"message_ttl in the URL must be seconds between 0 and 4,294,967 (49 days), got {text!r}. "
            f"Leave it out to keep letters."
        )
    return value
