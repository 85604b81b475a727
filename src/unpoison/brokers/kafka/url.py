"""What does a Kafka URL say?

kafka://host:9092, several servers with commas between them; kafka+ssl:// for TLS; a user and a password mean SASL. Of what
follows the question mark, names with a dot in them go to the client in its own terms (sasl.mechanism, ssl.ca.location …); the
others are ours: `group`, `prefix`, `partitions`, `replicas`, `session_timeout`, `give_back`, `instance`.
"""

import re
from typing import Any, NamedTuple

from unpoison.errors import ConfigError
from unpoison.port.broker_url import BrokerURL, parse

OURS = ("group", "prefix", "partitions", "replicas", "session_timeout", "give_back", "instance")
PORT = 9092
FORM = f"kafka://host:{PORT}?group=billing, with commas between several hosts"
SESSION_TIMEOUT = 6.0
GIVE_BACK = 10.0
FORBIDDEN = {
    "enable.auto.commit": "what was not handled would count as done",
    "enable.auto.offset.store": "what was not handled would count as done",
    "group.id": "use group=…",
    "group.instance.id": "use instance=…",
    "group.protocol": "a killed consumer's messages would wait for 45 s",
    "partition.assignment.strategy": "messages that run keep their place only with cooperative-sticky",
    "bootstrap.servers": "the servers stand before the question mark",
    "session.timeout.ms": "use session_timeout=…, in seconds",
    "enable.idempotence": "a dead letter could be stored twice",
    "allow.auto.create.topics": "a server would make topics with its own settings, and dead letters would expire",
}
_NAME = re.compile(r"[A-Za-z0-9._-]+")


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


def address(url: str) -> Address:
    parts = parse(url, FORM)
    shown = parts.at(parts.places(PORT, FORM))
    given = parts.options()
    ours = {name: value for name, value in given.items() if "." not in name}
    if unknown := sorted(ours.keys() - set(OURS)):
        raise ConfigError(
            f"{shown!r} has the option {unknown[0]!r}, which is none. There are {', '.join(OURS)}, and those of the client, "
            f"which have dots in their names (sasl.mechanism)."
        )
    passed: dict[str, Any] = {name: value for name, value in given.items() if "." in name}
    if refused := sorted(passed.keys() & FORBIDDEN.keys()):
        raise ConfigError(f"{shown!r} sets {refused[0]!r}, which unpoison decides itself: {FORBIDDEN[refused[0]]}.")
    if parts.path.strip("/"):
        raise ConfigError(f"{parts.shown!r} has the path {parts.path!r}, and Kafka has none. The form is {FORM}")
    options = {"bootstrap.servers": shown.partition("://")[2], **_login(parts), **passed}
    if protocol := _protocol(options, parts.scheme == "kafka+ssl", shown):
        options["security.protocol"] = protocol
    return Address(
        shown,
        options,
        _name("group", ours["group"]) if "group" in ours else "",
        _name("prefix", ours["prefix"]) if ours.get("prefix") else "",
        _number("partitions", ours.get("partitions"), -1),
        _number("replicas", ours.get("replicas"), -1),
        _seconds("session_timeout", ours.get("session_timeout"), SESSION_TIMEOUT),
        _seconds("give_back", ours.get("give_back"), GIVE_BACK),
        _name("instance", ours["instance"]) if ours.get("instance") else None,
    )


def _login(parts: BrokerURL) -> dict[str, str]:
    if parts.user is None:
        return {}
    return {"sasl.mechanism": "PLAIN", "sasl.username": parts.user, "sasl.password": parts.password or ""}


def _protocol(options: dict[str, Any], tls: bool, shown: str) -> str:
    """Whoever sets options of TLS or of a login wants it: the client alone would leave them aside without a word."""
    tls = tls or any(name.startswith("ssl.") for name in options)
    login = any(name.startswith("sasl.") for name in options)
    meant = f"sasl_{'ssl' if tls else 'plaintext'}" if login else "ssl" if tls else ""
    given = str(options.get("security.protocol", meant)).lower()
    if (tls and "ssl" not in given) or (login and "sasl" not in given):
        raise ConfigError(
            f"{shown!r} sets security.protocol={options['security.protocol']!r}, but the rest of the URL asks for "
            f"{'TLS' if tls and 'ssl' not in given else 'a login'}. Leave security.protocol out, or have {meant!r}."
        )
    return given


def _name(option: str, text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 100:
        raise ConfigError(
            f"{option}={text!r} in the URL cannot be part of a topic's name in Kafka. "
            f"Use at most 100 letters, digits, '.', '-' and '_', as in 'billing'."
        )
    return text


def _number(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise ConfigError(f"{option} in the URL must be a number from 1 to 10,000, got {text!r}. Left out, the server decides.")
    return int(text)


def _seconds(option: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.5 <= value <= 3600:
        raise ConfigError(f"{option} in the URL must be seconds from 0.5 to 3,600, got {text!r}. Left out it is {default:g}.")
    return value
