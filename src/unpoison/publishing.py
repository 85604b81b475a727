"""What became of each message that was published?

Stored; refused, which is certain, with the reason; or unknown, because no answer came. A broker says so for each message, and
`unpoison.sending` makes one error of it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from unpoison.errors import BrokerUnavailable, ConfigError, Refusal, UnpoisonError
from unpoison.message import Outgoing


class Refused(NamedTuple):
    """Why a message is certainly not stored."""

    refusal: Refusal
    reason: str
    cause: UnpoisonError | None = None
    """Where we refused it ourselves, before it was sent."""


class Published(msgspec.Struct, frozen=True):
    """What became of the messages of one publish, by their positions in it. Those in neither mapping are stored."""

    refused: Mapping[int, Refused] = {}
    unknown: Mapping[int, str] = {}
    """No answer came, and this is why: they may be stored."""
    created: Collection[str] = ()
    """Sources that did not exist before."""


STORED = Published()
"""All of them are."""


def not_sent(error: UnpoisonError, refusal: Refusal | None = None) -> Refused:
    """For messages that were not sent because of this error. Without a refusal: the source cannot be had, or not now."""
    return Refused(refusal or (Refusal.NO_SUCH_SOURCE if isinstance(error, ConfigError) else Refusal.NOT_SENT), str(error), error)


def without_source(messages: Sequence[Outgoing], open_source: Callable[[str], object]) -> dict[int, Refused]:
    """Open the source of each message. Returns those that cannot be sent because that failed."""
    failed: dict[str, Refused] = {}
    for source in {message.source for message in messages}:
        try:
            open_source(source)
        except (ConfigError, BrokerUnavailable) as error:
            failed[source] = not_sent(error)
    if not failed:
        return {}
    return {number: failed[message.source] for number, message in enumerate(messages) if message.source in failed}


def all_or_none(messages: Sequence[Outgoing], culprits: Mapping[int, Refused]) -> Published:
    """For a broker that stores all messages of a batch or none: these are refused, so the others were not sent."""
    why = f"It was not sent: all of a batch is stored or none, and the message at position {min(culprits)} was refused."
    others = Refused(Refusal.NOT_SENT, why)
    return Published({number: culprits.get(number, others) for number in range(len(messages))})


def by_source(messages: Sequence[Outgoing]) -> dict[str, list[Outgoing]]:
    found: dict[str, list[Outgoing]] = {}
    for message in messages:
        found.setdefault(message.source, []).append(message)
    return found
