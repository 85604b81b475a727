"""Translate what the server refuses, and what the client raises, into errors that say what to do."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pika import exceptions
from pika.adapters.utils import connection_workflow as workflow

from unpoison.brokers.rabbitmq.names import made_of
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker_url import masked_text

if TYPE_CHECKING:
    from unpoison.brokers.rabbitmq.url import Address

ACCESS_REFUSED, NOT_FOUND, LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
IN_USE = "in exclusive use"
GRANT = (
    "Have an administrator grant this right: `unpoison plan-topology` prints all that are needed, `unpoison doctor` those that "
    "are missing."
)


class Refused(BrokerUnavailable):
    """The server closed a channel over what was asked on it."""

    def __init__(self, code: int, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(f"RabbitMQ refuses: {text}. {GRANT}" if self.is_forbidden else f"RabbitMQ refuses: {code} {text}.")

    @property
    def is_forbidden(self) -> bool:
        """Whether the user of the URL lacks a right. At start-up that ends a run; later it pauses it, since the right may be
        given back. A queue that another connection uses exclusively is refused with the same code."""
        return self.code == ACCESS_REFUSED and IN_USE not in self.text


class Unanswered(Exception):
    """The answer comes later, and is not waited for."""


class SourceDeleted(BrokerUnavailable):
    """The queue of a source is gone, and we do not create it again."""

    def __init__(self, source: str, *, may_create: bool) -> None:
        why = (
            f"unpoison did not make it (there is no exchange {made_of(source)!r}), so it does not make it again: a new one would "
            "lack the bindings and arguments of the old one, and messages published to its exchanges would vanish"
            if may_create
            else "create=False forbids creating it"
        )
        super().__init__(
            f"Queue {source!r} is not there: it was deleted, with all that was in it, and {why}. Create it again with its "
            f"bindings; then the consumer resumes by itself."
        )


def closing_reason(error: BaseException) -> str:
    text = getattr(error, "reply_text", None)
    return f"{error.reply_code} {text}" if text and hasattr(error, "reply_code") else (str(error) or type(error).__name__)


def _causes(error: BaseException) -> Iterable[BaseException]:
    yield error
    for inner in getattr(error, "exceptions", ()):
        yield from _causes(inner)
    if isinstance(inner := getattr(error, "exception", None), BaseException):
        yield from _causes(inner)


def connect_error(error: BaseException, address: "Address") -> Exception:
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
