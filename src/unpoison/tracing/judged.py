"""What is a hook told of a verdict, so that it can become a span?"""

import msgspec


class Judged(msgspec.Struct, frozen=True):
    """What was decided, as the span tells it. `at` is in nanoseconds since 1970."""

    verdict: str
    reason: str
    at: int
    attempt: int
    replays: int
    classification: str
    delay: float | None = None
    charged: bool = True
    letter_id: str | None = None
