"""Sends messages, and raises one error for those that are not stored.

The one way for `app.publish` and `unpoison publish`. A broker says of each message what became of it; here that becomes an error.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from unpoison.body.payload import check_size, check_text, checked_headers
from unpoison.errors import BrokerUnavailable, ConfigError, PayloadError, PublishedMessage, PublishFailed, UnpoisonError
from unpoison.model.events import fields
from unpoison.model.message import NO_HEADERS, Outgoing
from unpoison.port.broker import Broker, Published, not_sent
from unpoison.tracing import sends as tracing_sends

log = logging.getLogger("unpoison")


def outgoing(
    source: str,
    bodies: Sequence[bytes],
    ids: Sequence[str],
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    delay: float = 0.0,
    max_body: int | None = None,
) -> list[Outgoing]:
    """Messages with these bodies and ids. Raises PayloadError if one of them cannot be sent anywhere."""
    for body in bodies:
        check_size(body, max_body)
    check_text("key", key)
    texts = checked_headers(headers) if headers else NO_HEADERS
    return [Outgoing(id_, source, body, key, texts, delay) for id_, body in zip(ids, bodies, strict=True)]


def published(connect: Callable[[], Broker], messages: Sequence[Outgoing], url: str) -> Published:
    """What became of these messages, which are of one source. If there is no connection none was sent, and that is an outcome
    too. `url` is that of the broker."""

    def store(messages: Sequence[Outgoing]) -> Published:
        try:
            return connect().publish(messages)
        except BrokerUnavailable as error:
            return Published(dict.fromkeys(range(len(messages)), not_sent(error)))

    return tracing_sends.stored(url, messages, store)


def check(messages: Sequence[Outgoing], outcome: Published) -> None:
    """Raise unless all of these messages, which are of one source, are stored."""
    if outcome.refused or outcome.unknown:
        raise _error(messages, outcome)


def _error(messages: Sequence[Outgoing], outcome: Published) -> UnpoisonError:
    refused = [outcome.refused[number] for number in sorted(outcome.refused)]
    cause = refused[0].cause if refused else None
    if isinstance(cause, ConfigError) and len(refused) == len(messages) and all(each.cause is cause for each in refused):
        return cause  # nothing can be sent to this source before the configuration changes
    if len(messages) == 1 and refused and refused[0].refusal.is_about_the_message:
        return PayloadError(refused[0].reason)
    failed = PublishFailed(
        messages[0].source,
        [PublishedMessage(n, m.id) for n, m in enumerate(messages) if n not in outcome.refused and n not in outcome.unknown],
        [PublishedMessage(n, messages[n].id, why.reason, why.refusal) for n, why in sorted(outcome.refused.items())],
        [PublishedMessage(n, messages[n].id, why) for n, why in sorted(outcome.unknown.items())],
    )
    failed.__cause__ = cause
    return failed


_warned: set[tuple[str, str]] = set()


def warn_of_new_source(source: str, url: str, known: Sequence[str]) -> None:
    """Once per process: this publish has made a source that the app does not consume, perhaps because its name is misspelt."""
    if (url, source) in _warned:
        return
    _warned.add((url, source))
    import difflib  # noqa: PLC0415 - only needed here, and hardly ever

    similar = difflib.get_close_matches(source, known, 1)
    meant = f" Did you mean {similar[0]!r}?" if similar else ""
    consumed = f"This app consumes {', '.join(map(repr, known))}." if known else "This app consumes nothing itself."
    log.warning(
        "Source %r did not exist; this publish has created it, and nothing consumes it yet.%s %s If the name is right, start a "
        "consumer for it. With create=False, publishing to a source that does not exist is refused.",
        source,
        meant,
        consumed,
        extra=fields("source-created", source=source),
    )
