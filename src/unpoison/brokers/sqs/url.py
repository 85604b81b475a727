"""What does an SQS URL say?

sqs://?region=eu-west-1, with `endpoint=http://127.0.0.1:9324` for a server that is not Amazon's. Region and credentials come from
where the AWS tools look for them (variables, profiles, roles) unless they stand here.
"""

from typing import NamedTuple

from unpoison.errors import ConfigError
from unpoison.port.broker_url import masked, parse

OPTIONS = ("endpoint", "region", "profile", "prefix", "visibility", "wait", "pollers")
VISIBILITY, LONGEST_VISIBILITY = 30, 43_200
WAIT, LONGEST_WAIT = 2, 20
POLLERS, MOST_POLLERS = 4, 64
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
    """Seconds that one question for messages waits at the server."""
    pollers: int

    @property
    def shown(self) -> str:
        where = masked(self.endpoint or "") or self.region or "the region of this environment"
        return f"SQS at {where}"


def address(url: str) -> Address:
    parts = parse(url, FORM)
    options = parts.options()
    if parts.hosts or parts.path.strip("/"):
        raise ConfigError(f"{parts.shown!r} names a place before the options, and SQS has none there. {FORM}")
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise ConfigError(f"The sqs:// URL has the option {unknown[0]!r}, which is none. There are: {', '.join(OPTIONS)}")
    endpoint = options.get("endpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
    return Address(
        endpoint.rstrip("/") if endpoint else None,
        options.get("region"),
        options.get("profile"),
        parts.user or None,
        parts.password or None,
        _prefix(options.get("prefix", "")),
        _number(
            options, "visibility", VISIBILITY, 1, LONGEST_VISIBILITY, "It is how long a vanished consumer keeps its messages."
        ),
        _number(options, "wait", WAIT, 0, LONGEST_WAIT, "It is how long one question for messages waits at the server."),
        _number(options, "pollers", POLLERS, 1, MOST_POLLERS, "It is how many requests are on their way at once."),
    )


def _check_endpoint(endpoint: str) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"endpoint={masked(endpoint)!r} in the URL is no address. {FORM}")
    parse(endpoint, ENDPOINT).places(443, ENDPOINT)


def _prefix(text: str) -> str:
    if not all(each.isascii() and (each.isalnum() or each in "-_") for each in text):
        raise ConfigError(f"prefix={text!r} in the URL cannot begin the name of a queue: use letters, digits, '-' and '_'.")
    return text


def _number(options: dict[str, str], name: str, otherwise: int, least: int, most: int, meaning: str) -> int:
    text = options.get(name, str(otherwise))
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ConfigError(
            f"{name} in the URL must be a whole number between {least} and {most:,}, got {text!r}. "
            f"{meaning} Left out it is {otherwise}."
        )
    return int(text)
