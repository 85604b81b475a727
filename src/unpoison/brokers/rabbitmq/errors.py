"""What does the client mean, when a connection cannot be made or was lost?"""

from collections.abc import Iterable
from typing import Any

from pika import exceptions
from pika.adapters.utils import connection_workflow as workflow

from unpoison.brokers.rabbitmq.url import Address
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker_url import masked_text


def version(properties: Any) -> tuple[int, int]:
    text = str((properties or {}).get("version", "0.0"))
    numbers = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def reason(error: BaseException) -> str:
    text = getattr(error, "reply_text", None)
    return f"{error.reply_code} {text}" if text and hasattr(error, "reply_code") else (str(error) or type(error).__name__)


def _causes(error: BaseException) -> Iterable[BaseException]:
    yield error
    for inner in getattr(error, "exceptions", ()):
        yield from _causes(inner)
    if isinstance(inner := getattr(error, "exception", None), BaseException):
        yield from _causes(inner)


def explained(error: BaseException, address: Address) -> Exception:
    """Why no connection could be made: something to wait for, or something that is wrong with the URL."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError):
            user = address.parameters.credentials.username
            return ConfigError(f"RabbitMQ at {address.shown} refuses user {user!r} or its password. Check the URL.")
        if isinstance(cause, exceptions.ProbableAccessDeniedError) or "NOT_ALLOWED" in str(cause):
            return ConfigError(
                f"RabbitMQ at {address.shown} refuses the virtual host {address.vhost!r}: it does not exist, or this user "
                f"may not use it. Check the URL; to make it: rabbitmqctl add_vhost {address.vhost}"
            )
    last = next((cause for cause in reversed(causes) if not isinstance(cause, workflow.AMQPConnectorException)), error)
    text = getattr(last, "strerror", None) or str(last) or "nothing listens there"
    return BrokerUnavailable(f"RabbitMQ at {address.shown} does not answer: {masked_text(text)}.")
