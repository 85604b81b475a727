"""What is the same for every DLQ that is opened by its own name, whoever made it?

Its letters may be of many sources. What is told is believed: see `told.py`.
"""

from collections.abc import Collection

import msgspec

from unpoison.errors import CapabilityError, ConfigError, PayloadError
from unpoison.model.dead_letter import DeadLetter

DELIVERY_LIMIT = "delivery-limit"
DANGERS = (DELIVERY_LIMIT,)
"""What may be accepted by name."""


def check_accepted(accepted: Collection[str]) -> None:
    unknown = sorted(set(accepted) - set(DANGERS))
    if unknown:
        raise ConfigError(f"There is no danger {unknown[0]!r} to accept. There is: {', '.join(DANGERS)}.")


def not_there(kind: str, dlq: str, shown: str) -> ConfigError:
    return ConfigError(f"There is no {kind} {dlq!r} at {shown}, or this user may not see it. Compare the name; nothing was made.")


def is_ours(dlq: str, source: str) -> ConfigError:
    """Of a DLQ that unpoison keeps notes about: opened without these, letters that were dealt with would be shown again."""
    return ConfigError(
        f"{dlq!r} is a DLQ of unpoison's own, and it has notes about what became of the letters in it. Open it as that of its "
        f"source: --source {source}"
    )


def without_origin(letter_id: str) -> PayloadError:
    return PayloadError(
        f"Letter {letter_id!r} cannot be sent: it does not say where it came from. Publish its body by hand (unpoison dlq show, "
        f"unpoison publish), or purge it."
    )


def keeps_no_history(dlq: str) -> CapabilityError:
    return CapabilityError(
        f"A letter in {dlq!r} cannot be marked as discarded: others own this DLQ, and unpoison notes nothing there. Purge it, or "
        f"move the letters into a store (unpoison collect --dlq {dlq}) and work on them there with --store."
    )


def accepting(danger: str) -> str:
    return f"If you accept that: --accept {danger}"


def of_source(letter: DeadLetter, source: str) -> DeadLetter:
    """The letter, told to be of this source."""
    return msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, source=source))
