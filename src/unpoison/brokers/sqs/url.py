"""Read an SQS URL.

sqs://?region=eu-west-1, with `endpoint=http://127.0.0.1:9324` for a server that is not Amazon's. Region and credentials come from
where the AWS tools look for them (variables, profiles, roles) unless they stand here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from unpoison.errors import ConfigError
from unpoison.port.broker_url import Options, masked, parse

OPTIONS = ("endpoint", "region", "profile", "prefix", "visibility", "wait", "pollers")
VISIBILITY, WAIT, POLLERS = 30, 2, 4
ENDPOINT = "http://host:9324"
FORM = "The form is sqs://?region=eu-west-1, with endpoint=http://host:port for a server that is not Amazon's."


class Address(NamedTuple):
    """Where the queues are, who we are there, and how we work. `shown` has no secret in it."""

    endpoint: str | None
    region: str | None
    profile: str | None
    key: str | None
    secret: str | None
    prefix: str
    visibility: int
    """Seconds for which a message is ours; it is renewed while it runs."""
    wait: int
    """Seconds that one request for messages waits at the server."""
    pollers: int
    dlqs: Mapping[str, str] = {}
    """The DLQs that are not `<queue>-dlq`, by source."""

    @property
    def shown(self) -> str:
        where = masked(self.endpoint or "") or self.region or "the region of this environment"
        return f"SQS at {where}"


def address(url: str) -> Address:
    parts = parse(url, FORM)
    if parts.hosts or parts.path.strip("/"):
        raise ConfigError(f"{parts.shown!r} names a place before the options, and SQS has none there. {FORM}")
    options = Options(parts, OPTIONS)
    endpoint = options.get("endpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
    prefix = "cannot begin the name of a queue: use letters, digits, '-' and '_'."
    kept = f"It is how long a vanished consumer keeps its messages. Left out it is {VISIBILITY}."
    waits = f"It is how long one request for messages waits at the server. Left out it is {WAIT}."
    pollers = f"It is how many requests are on their way at once. Left out it is {POLLERS}."
    return Address(
        endpoint.rstrip("/") if endpoint else None,
        options.get("region"),
        options.get("profile"),
        parts.user or None,
        parts.password or None,
        options.text("prefix", "", _is_prefix, prefix),
        options.whole("visibility", VISIBILITY, 1, 43_200, kept),
        options.whole("wait", WAIT, 0, 20, waits),
        options.whole("pollers", POLLERS, 1, 64, pollers),
        parts.dlqs,
    )


def _check_endpoint(endpoint: str) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"endpoint={masked(endpoint)!r} in the URL is no address. {FORM}")
    parse(endpoint, ENDPOINT).places(443, ENDPOINT)


def _is_prefix(text: str) -> bool:
    return all(each.isascii() and (each.isalnum() or each in "-_") for each in text)
