"""Ask the management API about queues: it knows what AMQP does not tell.

The URL says where it is (`?management=http://host:15672`), else it is looked for on the same host. It is asked directly and
redirects are not followed: the password goes nowhere else, and not unencrypted where the URL says amqps.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from unpoison.brokers.rabbitmq.names import busy_of, dlq_of, history_of, purposes, suspects_of
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
        """A host that a redirect names gets no password."""


class Management:
    """The management API of one server, for one virtual host."""

    def __init__(self, address: Address, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        parts = _api_url(address)
        login = address.parameters.credentials
        self.user = unquote(parts.username) if parts.username else str(login.username)
        password = unquote(parts.password) if parts.password else str(login.password)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        self.shown = f"{parts.scheme}://{host}:{parts.port or PORTS[parts.scheme]}{parts.path.rstrip('/')}"
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

    def of_vhost(self, kind: str, name: str = "", more: str = "") -> Any:
        """All things of one kind in the virtual host, or the one with this name."""
        return self.get(f"{kind}/{self.vhost}{name and '/'}{quote(name, safe='')}{more}")

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


def _api_url(address: Address) -> SplitResult:
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


DEFAULT_LIMIT = 20
"""Deliveries after which RabbitMQ 4 gives up a message of a quorum queue, when nothing else is said."""

LIST = "disable_stats=true&enable_queue_totals=true"
"""Without statistics, which are seconds old, the API shows queues as they are now."""

_APPLIES = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}


class Policy(NamedTuple):
    """A policy, or an operator's policy, as it was set."""

    name: str
    pattern: str
    applies: str
    priority: int
    definition: Mapping[str, Any]

    def matches(self, name: str, kind: str) -> bool:
        if self.applies not in ("all", "queues", _APPLIES.get(kind, "")):
            return False
        try:
            return re.search(self.pattern, name) is not None
        except re.error:  # the server's expressions know a little more than ours
            return False


class FoundQueue(NamedTuple):
    """A queue that exists, with its arguments, its policy and the operator's policy.

    Of each kind one policy applies to a queue: the matching one with the highest priority. Where several places set a number the
    smallest counts, so that a policy can undo what the queue was made with; elsewhere the argument counts before the operator's
    policy, and that before the policy.
    """

    name: str
    kind: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Mapping[str, Any]
    policy: Policy | None = None
    operator: Policy | None = None
    role: str = "source"
    """What it is for: source, dlq, history, suspects, notes or delay."""

    def settings(self, key: str) -> dict[str, Any]:
        """The places that set this, in words, and their values."""
        found = {f"its argument x-{key}": self.arguments.get(f"x-{key}")}
        for kind, policy in (("operator policy", self.operator), ("policy", self.policy)):
            if policy is not None:
                found[f"the {kind} {policy.name!r}"] = policy.definition.get(key)
        return {place: value for place, value in found.items() if value is not None}

    def number(self, key: str) -> int | None:
        """The one that limits something: a negative one means that there is no limit."""
        given = self.settings(key).values()
        return min((each for each in given if isinstance(each, int) and not isinstance(each, bool) and each >= 0), default=None)

    def text(self, key: str) -> str | None:
        return next(map(str, self.settings(key).values()), None)

    def by(self, key: str) -> str:
        """Where a number that counts comes from, in words."""
        value = self.number(key)
        return next(
            (f"by {place}" for place, set_to in self.settings(key).items() if set_to == value), "by RabbitMQ's own default"
        )

    def limit(self, version: tuple[int, int]) -> int | None:
        """Deliveries after which the server gives a message up. None: never."""
        if self.kind != "quorum":
            return None
        given = self.number("delivery-limit")
        if given is None and not self.settings("delivery-limit") and version >= (4, 0):
            return DEFAULT_LIMIT
        return given


class VirtualHost(NamedTuple):
    """Everything in one virtual host that was asked for."""

    name: str
    version: tuple[int, int]
    message_ttl: float | None
    dlq_ttl: float | None
    longest: float | None
    management: Management
    queues: Mapping[str, FoundQueue]
    where: Address

    def family(self, source: str) -> list[FoundQueue]:
        """The queues of one source, as far as they exist."""
        roles = {source: "source", suspects_of(source): "suspects"}
        roles |= {dlq_of(self.where, source): "dlq", history_of(self.where, source): "history"}
        found = [self.queue(name, roles.get(name, "notes")) for name in purposes(self.where, source)]
        return [each for each in found if each is not None]

    def queue(self, name: str, role: str) -> FoundQueue | None:
        found = self.queues.get(name)
        return None if found is None else found._replace(role=role)

    def exchange(self, name: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.management.of_vhost("exchanges", name)
        return found

    def bindings(self, exchange: str) -> Sequence[Mapping[str, Any]]:
        """What leaves an exchange, and where to."""
        return self.management.of_vhost("exchanges", exchange, "/bindings/source") or ()


def expires_after(management: Management, queue: str) -> float | None:
    """Seconds after which a message that waits in this queue expires, by its arguments and its policies; None: never."""
    found = management.of_vhost("queues", queue)
    if found is None:
        raise Unanswered(f"{management.shown} knows no queue {queue!r}.")
    policy, arguments = found.get("effective_policy_definition") or {}, found.get("arguments") or {}
    given = (policy.get("message-ttl"), arguments.get("x-message-ttl"))
    return min((each / 1000 for each in given if isinstance(each, int)), default=None)


def queues_of(management: Management) -> dict[str, FoundQueue]:
    """All queues of the virtual host, with what applies to them."""
    policies = _policies(management, "policies")
    operators = _policies(management, "operator-policies")
    rows = management.of_vhost("queues", more=f"?{LIST}")
    if rows is None:
        raise Unanswered(f"{management.shown} knows no such virtual host: it belongs to another server.")
    found = {}
    for row in rows:
        name, kind = row["name"], row.get("type", "classic")
        durable, auto_delete, exclusive = (bool(row.get(flag)) for flag in ("durable", "auto_delete", "exclusive"))
        policy, operator = (next((each for each in of if each.matches(name, kind)), None) for of in (policies, operators))
        arguments = row.get("arguments") or {}
        found[name] = FoundQueue(name, kind, durable, auto_delete, exclusive, arguments, policy, operator)
    return found


def sources_in(queues: Iterable[str]) -> list[str]:
    """The sources that unpoison has been used with."""
    names = set(queues)
    return sorted(name for name in names if suspects_of(name) in names or busy_of(name) in names)


def _policies(management: Management, kind: str) -> list[Policy]:
    rows = management.of_vhost(kind) or ()
    policies = [Policy(row["name"], row["pattern"], row["apply-to"], row["priority"], row["definition"]) for row in rows]
    return sorted(policies, key=lambda policy: -policy.priority)
