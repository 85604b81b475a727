"""What is called how in Kafka?

A source is a topic. For the source `orders` and the group `unpoison`:

    topic orders                     the messages; its group is `unpoison`
    topic orders.unpoison.retry        what is started again, one partition for each purpose; its group is `unpoison.retry`
    topic orders.dlq                 dead letters
    topic orders.dlq.states          what became of them

A prefix from the URL stands before all of these.
"""

import re
from typing import NamedTuple

from unpoison.errors import ConfigError

LONGEST_NAME = 249
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")

AGAIN, LANE, HELD, REPLAYS = 0, 8, 9, 10
"""Partitions of the retry topic: to be started at once, alone, still run by somebody, sent again by a person."""
TIERS = ((1, 1.0), (2, 8.0), (3, 60.0), (4, 480.0), (5, 3_600.0), (6, 28_800.0), (7, float("inf")))
"""Partitions of the retry topic for what waits, with the longest delay of each, in seconds: an hour's wait is in nobody's way
who waits for a second."""
PARTITIONS = 11


class Names(NamedTuple):
    """The names that belong to one source and group."""

    source: str
    group_name: str
    prefix: str = ""

    def letter_id(self, partition: int, offset: int) -> str:
        """The id of the dead letter that stands there."""
        return f"{self.source}-{f'{partition}.' if partition else ''}{offset}"

    @property
    def topic(self) -> str:
        return f"{self.prefix}{self.source}"

    @property
    def retry(self) -> str:
        return self.retry_of(self.group_name)

    def retry_of(self, group: str) -> str:
        return f"{self.topic}.{group}.retry"

    @property
    def dlq(self) -> str:
        return f"{self.topic}.dlq"

    @property
    def states(self) -> str:
        return f"{self.dlq}.states"

    @property
    def topics(self) -> tuple[str, str, str, str]:
        return self.topic, self.retry, self.dlq, self.states

    @property
    def group(self) -> str:
        return f"{self.prefix}{self.group_name}"

    @property
    def retry_group(self) -> str:
        return f"{self.group}.retry"

    @property
    def operators(self) -> str:
        """Who works on dead letters is in this group for as long as it lives."""
        return f"{self.group}.operators"


def tier(delay: float) -> int:
    """The partition for what is to be started so many seconds from now."""
    if delay <= 0:
        return AGAIN
    return next(partition for partition, longest in TIERS if delay <= longest)


def check_name(source: str, names: Names) -> None:
    longest = max(len(each) for each in (names.retry, names.states))
    if not _LEGAL.fullmatch(source) or source in (".", "..") or longest > LONGEST_NAME:
        raise ConfigError(
            f"Source {source[:80]!r} cannot be a Kafka topic: letters, digits, '.', '-' and '_', and with "
            f"'.{names.group_name}.retry' behind it at most {LONGEST_NAME} of them."
        )
