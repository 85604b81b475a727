"""How is the management API asked, which knows of a queue what AMQP does not tell?

Where it is, the URL says (`?management=http://host:15672`), else it is looked for on the same host. It is asked directly and
not followed elsewhere: the password goes to nobody else, and not unencrypted where the URL says amqps.
"""

import base64
import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from unpoison.brokers.rabbitmq.url import Address
from unpoison.errors import ConfigError

TIMEOUT = 15.0
"""Seconds. A server with thousands of queues takes some to list them."""

PORTS = {"http": 15672, "https": 15671}
NOT_FOUND = 404
ALARMED = 503
"""How the API answers, with an ordinary body, when a check of health fails."""


class Unanswered(Exception):
    """The API did not answer, or not to this user."""


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Whoever is named there gets no password."""


class Management:
    """The management API of one server, for one virtual host."""

    def __init__(self, address: Address, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        parts = _place(address)
        login = address.parameters.credentials
        self.user = unquote(parts.username) if parts.username else str(login.username)
        password = unquote(parts.password) if parts.password else str(login.password)
        self.shown = f"{parts.scheme}://{_host(parts)}:{parts.port or PORTS[parts.scheme]}{parts.path.rstrip('/')}"
        self.vhost = quote(address.vhost, safe="")
        self._login = base64.b64encode(f"{self.user}:{password}".encode()).decode()
        tls = address.parameters.ssl_options
        self._opener = build_opener(ProxyHandler({}), _Stay(), HTTPSHandler(context=tls.context if tls else None))

    def get(self, path: str) -> Any:
        """The decoded answer; None where there is no such thing."""
        request = Request(f"{self.shown}/api/{path}", headers={"Authorization": f"Basic {self._login}"})  # noqa: S310 - http or https
        try:
            with self._answer(request) as answer:
                return None if answer.status == NOT_FOUND else json.load(answer)
        except (OSError, HTTPException, ValueError) as error:
            raise Unanswered(f"{self.shown} does not answer as the management API does: {_reason(error)}.") from None

    def _answer(self, request: Request) -> Any:
        try:
            return self._opener.open(request, timeout=self._timeout)
        except HTTPError as error:
            if error.code in (NOT_FOUND, ALARMED):
                return error
            with error:
                if error.code == 401:
                    raise Unanswered(f"{self.shown} refuses user {self.user!r}: {_told(error)}.") from None
                raise Unanswered(f"{self.shown} answered {error.code} {error.reason}.") from None


def _place(address: Address) -> SplitResult:
    if address.management is None:
        scheme = "https" if address.parameters.ssl_options else "http"
        host = str(address.parameters.host)
        return urlsplit(f"{scheme}://{f'[{host}]' if ':' in host else host}")
    parts = urlsplit(address.management)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ConfigError(
            f"management in the URL must be the address of RabbitMQ's management page, such as http://host:15672, "
            f"got {parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()!r}."
        )
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _told(error: HTTPError) -> str:
    """What the API says in its own words: a wrong password reads differently from a missing tag."""
    try:
        said = json.load(error)
        return str(said.get("reason") or said.get("error"))
    except (ValueError, AttributeError):
        return str(error.reason)


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    return str(getattr(inner, "strerror", None) or inner or type(error).__name__)
