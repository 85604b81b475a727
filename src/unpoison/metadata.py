"""What is known about a message when one of its attempts has just failed?"""

from dataclasses import dataclass
from datetime import UTC, datetime

from unpoison.errors import ConfigError


@dataclass(frozen=True, slots=True, init=False)
class MessageMetadata:
    """What is known about a message when one of its attempts has just failed.

    `attempt` is the number of the attempt that failed, from 1. `max_attempts` narrows the handler's limit, never widens it.
    `first_failure_time` is given as a datetime, which without a time zone is read as UTC, or as `time.time()` tells it.
    """

    message_id: str
    attempt: int
    max_attempts: int | None
    first_failure_time: datetime | None
    last_error: str | None

    def __init__(
        self,
        message_id: str,
        attempt: int = 1,
        max_attempts: int | None = None,
        first_failure_time: datetime | float | None = None,
        last_error: str | None = None,
    ) -> None:
        set_once = object.__setattr__  # it is frozen
        set_once(self, "message_id", message_id)
        set_once(self, "attempt", attempt)
        set_once(self, "max_attempts", max_attempts)
        set_once(self, "first_failure_time", None if first_failure_time is None else _moment(first_failure_time))
        set_once(self, "last_error", last_error)


def _moment(given: object) -> datetime:
    if isinstance(given, datetime):
        return given
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return datetime.fromtimestamp(given, UTC)
    except (ValueError, OverflowError, OSError):  # not a number, or far beyond any calendar
        pass
    raise ConfigError(
        f"first_failure_time must be a datetime or seconds since 1970, as time.time() gives them, got {given!r}. "
        "Milliseconds have to be divided by 1000."
    )
