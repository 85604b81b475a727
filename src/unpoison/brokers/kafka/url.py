"""What does a Kafka URL say?

kafka://host:9092, with commas between several servers; kafka+ssl:// for TLS; a user and a password mean SASL. After the question
mark, options with a dot in their names go to the client as they are (sasl.mechanism, ssl.ca.location …). The others are ours:
`group`, `prefix`, `partitions`, `replicas`, `session_timeout`, `give_back`, `instance`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from unpoison.errors import ConfigError
from unpoison.port.broker_url import Options, parse

OURS = ("group", "prefix", "partitions", "replicas", "session_timeout", "give_back", "instance")
CLIENTS = "every option of librdkafka, which has a dot in its name (sasl.mechanism)"
PORT = 9092
FORM = f"kafka://host:{PORT}?group=billing, with commas between several hosts"
SESSION_TIMEOUT = 6.0
GIVE_BACK = 10.0
FORBIDDEN = {
    "enable.auto.commit": "messages that were not handled would count as done",
    "enable.auto.offset.store": "messages that were not handled would count as done",
    "group.id": "use group=…",
    "group.instance.id": "use instance=…",
    "group.protocol": "a killed consumer's messages would wait for 45 s",
    "partition.assignment.strategy": "running messages keep their partition only with cooperative-sticky",
    "bootstrap.servers": "the servers stand before the question mark",
    "session.timeout.ms": "use session_timeout=…, in seconds",
    "enable.idempotence": "a dead letter could be stored twice",
    "allow.auto.create.topics": "a server would create topics with its own settings, and dead letters would expire",
}
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_NAME_RULE = "cannot be part of a topic's name in Kafka. Use at most 100 letters, digits, '.', '-' and '_', as in 'billing'."


class Address(NamedTuple):
    """Where the servers are, how to log in, and how we work there. `shown` has no password in it."""

    shown: str
    options: dict[str, Any]
    group: str
    """Empty if the URL names none: then messages can be published and dead letters looked at, and nothing can be consumed."""
    prefix: str
    partitions: int
    replicas: int
    session_timeout: float
    give_back: float
    instance: str | None
    dlqs: Mapping[str, str] = {}
    """The DLQs that are not `<topic>.dlq`, by source."""


def address(url: str) -> Address:
    parts = parse(url, FORM)
    shown = parts.at(parts.places(PORT, FORM))
    passed_on = [name for name in parts.options() if "." in name]
    ours = Options(parts, OURS, [*passed_on, CLIENTS])
    if refused := sorted(ours.passed_on.keys() & FORBIDDEN.keys()):
        raise ConfigError(f"{shown!r} sets {refused[0]!r}, which unpoison decides itself: {FORBIDDEN[refused[0]]}.")
    if parts.path.strip("/"):
        raise ConfigError(f"{parts.shown!r} has the path {parts.path!r}, and Kafka has none. The form is {FORM}")
    login = {"sasl.mechanism": "PLAIN", "sasl.username": parts.user, "sasl.password": parts.password or ""}
    login = {} if parts.user is None else login
    options: dict[str, Any] = {"bootstrap.servers": shown.partition("://")[2], **login, **ours.passed_on}
    if protocol := _protocol(options, parts.scheme == "kafka+ssl", shown):
        options["security.protocol"] = protocol
    return Address(
        shown,
        options,
        ours.text("group", "", _is_name, _NAME_RULE),
        ours.text("prefix", "", _is_name_or_empty, _NAME_RULE),
        ours.whole("partitions", -1, 1, 10_000, "Left out, the server decides."),
        ours.whole("replicas", -1, 1, 10_000, "Left out, the server decides."),
        ours.seconds("session_timeout", SESSION_TIMEOUT, 0.5, 3600, f"Left out it is {SESSION_TIMEOUT:g}."),
        ours.seconds("give_back", GIVE_BACK, 0.5, 3600, f"Left out it is {GIVE_BACK:g}."),
        ours.text("instance", "", _is_name_or_empty, _NAME_RULE) or None,
        parts.dlqs,
    )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _is_name_or_empty(text: str) -> bool:
    return not text or _is_name(text)


def _protocol(options: dict[str, Any], tls: bool, shown: str) -> str:
    """Options of TLS or of a login mean that it is wanted: without a protocol the client would ignore them silently."""
    tls = tls or any(name.startswith("ssl.") for name in options)
    login = any(name.startswith("sasl.") for name in options)
    meant = f"sasl_{'ssl' if tls else 'plaintext'}" if login else "ssl" if tls else ""
    given = str(options.get("security.protocol", meant)).lower()
    if (tls and "ssl" not in given) or (login and "sasl" not in given):
        raise ConfigError(
            f"{shown!r} sets security.protocol={options['security.protocol']!r}, but the rest of the URL asks for "
            f"{'TLS' if tls and 'ssl' not in given else 'a login'}. Leave security.protocol out, or use {meant!r}."
        )
    return given
