"""Redis URLs.

    redis://user:password@host:6379/0?group=billing          one server, or any node of a cluster
    rediss://…                                               the same over TLS
    redis+sentinel://host1:26379,host2:26379/mymaster/0      the current master, found through the sentinels
    rediss+sentinel://…                                      the same over TLS

Two options are ours, `group` and `list`; all others are passed to the client (redis-py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from redis.connection import Connection, parse_url

from unpoison.errors import ConfigError
from unpoison.port.broker_url import BrokerURL, masked, parse, without_secrets

GROUP = "unpoison"
RESERVED = ("dlq", "later")
"""In names of keys that belong to all groups, these stand where a group would."""

SENTINEL = "+sentinel"
SENTINEL_PORT = 26379
EXAMPLE = "redis://user:password@host:6379/0"

_DEFAULTS: dict[str, Any] = {"socket_timeout": 10.0, "socket_connect_timeout": 5.0, "socket_keepalive": True}
_OURS: dict[str, Any] = {"protocol": 2, "decode_responses": False}
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Address:
    """Where the server is, and the options of the URL."""

    shown: str
    hosts: tuple[tuple[str, int], ...]
    options: dict[str, Any]
    kind: type[Connection]
    group: str = GROUP
    lists: frozenset[str] = frozenset()
    service: str | None = None
    """The name of the master at the sentinels; None without sentinels."""
    sentinel_options: dict[str, Any] = field(default_factory=dict)
    dlqs: Mapping[str, str] = field(default_factory=dict)
    """The DLQs that are not `dlq:<source>`, by source."""

    def connection(self, host: str, port: int) -> Connection:
        """A connection of the client, not yet open."""
        return self.kind(host=host, port=port, **self.options)


def address(url: str) -> Address:
    """Raises ConfigError for a URL that cannot be understood."""
    parts = parse(url, EXAMPLE)
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: [value for each, value in given if each == name] for name in ("group", "list")}
    theirs = {name: value for name, value in given if name not in ours}
    has_sentinels = parts.scheme.endswith(SENTINEL)
    hosts = tuple(parts.places(SENTINEL_PORT if has_sentinels else 6379, EXAMPLE, "localhost"))
    path, service = _path(parts, url) if has_sentinels else (parts.path, None)
    if path.strip("/") and not path.strip("/").isdigit():
        raise ConfigError(f"{masked(url)!r}: the path must be the number of a database, got {path!r}. It looks like {EXAMPLE}")
    scheme = parts.scheme.removesuffix(SENTINEL)
    sentinel_options = {name.removeprefix("sentinel_"): theirs.pop(name) for name in list(theirs) if name.startswith("sentinel_")}
    plain = f"{scheme}://{parts.login}host:1{path}?{urlencode(theirs)}"
    try:
        options: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
        kind = options.pop("connection_class", Connection)
        options = {name: value for name, value in options.items() if name not in ("host", "port")}
        options, lists = _DEFAULTS | options | _OURS, frozenset(ours["list"])
        made = Address(
            masked(url), hosts, options, kind, _group(ours["group"], url), lists, service, sentinel_options, parts.dlqs
        )
        made.connection("host", 1)  # the client refuses an unknown option here
    except (TypeError, ValueError) as error:
        said = without_secrets(str(error), url)
        raise ConfigError(f"{masked(url)!r} is not a Redis URL ({said}). It looks like {EXAMPLE}") from None
    return made


def _path(parts: BrokerURL, url: str) -> tuple[str, str]:
    """With sentinels: the path of the database, and the name of the master."""
    service, _, database = unquote(parts.path.strip("/")).partition("/")
    if not service:
        raise ConfigError(
            f"{masked(url)!r} does not name the master that the sentinels watch. Write it as the path: "
            f"{parts.scheme}://host:26379/mymaster"
        )
    return f"/{database}", service


def is_group(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in RESERVED


def _group(given: list[str], url: str) -> str:
    group = given[-1] if given else GROUP
    if not is_group(group):
        raise ConfigError(
            f"{masked(url)!r}: group must be letters, digits and . _ - and none of {', '.join(RESERVED)}, got {group!r}. "
            f"For example ?group=billing"
        )
    return group
