"""How are the topics and groups of a source called?

A source is a topic. For the source `orders` and the group `billing`:

    topic orders                     the messages; its group is `billing`
    topic orders.billing.retry       retries, with one partition for each purpose; its group is `billing.retry`
    topic orders.dlq                 dead letters, unless another name is given for it
    topic orders.dlq.states          what became of them

A prefix from the URL stands before all of these.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from unpoison.brokers.kafka.url import Address, address
from unpoison.errors import ConfigError

LONGEST_NAME = 249
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")

AGAIN, SUSPECTS, HELD, REPLAYS = 0, 8, 9, 10
"""Partitions of the retry topic: retries without a delay, suspects, messages that a consumer still runs, replays."""
TIERS = ((1, 1.0), (2, 8.0), (3, 60.0), (4, 480.0), (5, 3_600.0), (6, 28_800.0), (7, float("inf")))
"""Partitions of the retry topic for delayed messages, with the longest delay of each, in seconds: an hour's wait
does not hold up a second's."""
PARTITIONS = 11
DLQ = ".dlq"
OPERATOR = "unpoison"
"""The group of an operator whose URL names none."""


class Names(NamedTuple):
    """The names that belong to one source and group. Without a group there are no retries."""

    source: str
    group_name: str
    prefix: str = ""
    given_dlq: str = ""
    """The name of the DLQ, if it is not the usual one."""

    def letter_id(self, partition: int, offset: int) -> str:
        """The id of the dead letter that stands there. Letters of a source may be in two DLQs, one after the other."""
        return f"{self.given_dlq or self.source}-{f'{partition}.' if partition else ''}{offset}"

    @property
    def topic(self) -> str:
        return f"{self.prefix}{self.source}"

    @property
    def retry(self) -> str:
        self.must_have_group()
        return self.retry_of(self.group_name)

    def must_have_group(self) -> None:
        if not self.group_name:
            raise ConfigError(
                f"Source {self.source!r} of Kafka: the URL names no consumer group, and delayed messages and replays wait for "
                f"one group. Name it: kafka://host:9092?group=billing"
            )

    def retry_of(self, group: str) -> str:
        return f"{self.topic}.{group}.retry"

    @property
    def dlq(self) -> str:
        return f"{self.prefix}{self.given_dlq}" if self.given_dlq else f"{self.topic}{DLQ}"

    @property
    def states(self) -> str:
        return f"{self.dlq}.states"

    @property
    def purposes(self) -> dict[str, str]:
        """All topics, and what each is for; without a group there is none for retries."""
        retry = {self.retry: "its retries"} if self.group_name else {}
        return {self.topic: "its messages", **retry, self.dlq: "its dead letters", self.states: "what became of dead letters"}

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.purposes)

    @property
    def group(self) -> str:
        return f"{self.prefix}{self.group_name or OPERATOR}"

    @property
    def retry_group(self) -> str:
        return f"{self.group}.retry"

    @property
    def operators(self) -> str:
        """Each operator is in a group of its own below this name, for as long as it lives."""
        return f"{self.group}.operators"

    @property
    def reading(self) -> str:
        """The group of clients that read a topic without consuming it. Nothing is committed in it."""
        return f"{self.group}.reading"


def used_sources(topics: Iterable[str], where: Address) -> list[str]:
    """The sources that unpoison has been used for: they have a DLQ."""
    there, prefix = set(topics), where.prefix
    names = [name.removesuffix(DLQ) for name in there if name.endswith(DLQ) and name.startswith(prefix)]
    found = {name.removeprefix(prefix) for name in names if name in there}
    return sorted(found | {source for source, dlq in where.dlqs.items() if f"{prefix}{dlq}" in there})


def groups_of(names: Names, topics: Iterable[str]) -> list[str]:
    """The groups that have consumed the source: each has a topic for its retries."""
    begin, end = f"{names.topic}.", ".retry"
    return sorted(name[len(begin) : -len(end)] for name in topics if name.startswith(begin) and name.endswith(end))


def with_groups(names: Names, topics: Iterable[str]) -> list[Names]:
    """The source with its group; without one, with each group that has consumed it, or as it is."""
    groups = [names.group_name] if names.group_name else groups_of(names, topics) or [""]
    return [names._replace(group_name=group) for group in groups]


def tier(delay: float) -> int:
    """The partition for a message with this delay in seconds."""
    if delay <= 0:
        return AGAIN
    return next(partition for partition, longest in TIERS if delay <= longest)


def names_of(where: Address, source: str) -> Names:
    """Checked."""
    names = Names(source, where.group, where.prefix, where.dlqs.get(source, ""))
    check_name(source, names)
    return names


def check_name(source: str, names: Names) -> None:
    ends = ".dlq.states", f".{names.group_name}.retry" if names.group_name else ""
    longest = max(ends, key=len)
    if not _LEGAL.fullmatch(source) or source in (".", "..") or len(names.topic + longest) > LONGEST_NAME:
        raise ConfigError(
            f"Source {source[:80]!r} cannot be a Kafka topic: letters, digits, '.', '-' and '_', and with "
            f"{longest!r} behind it at most {LONGEST_NAME} of them."
        )
    given = names.given_dlq
    if given and (not _LEGAL.fullmatch(given) or given in (".", "..") or len(names.states) > LONGEST_NAME):
        raise ConfigError(
            f"The DLQ {given[:80]!r} of source {source!r} cannot be a Kafka topic: letters, digits, '.', '-' and '_', and with "
            f"'.states' behind it at most {LONGEST_NAME} of them."
        )
    if names.dlq in (names.topic, names.retry_of(names.group_name)):
        raise ConfigError(
            f"The DLQ of source {source!r} cannot be {given!r}: that topic is something else of this source. Choose another name."
        )


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:
    """The topics of a source, and what each is for. To Kafka, names that differ in a dot and an underscore collide."""
    where = address(url)
    if consumed and not where.group:
        raise ConfigError(
            f"Consumer {source!r}: {where.shown!r} names no consumer group. Processes of one group share the messages, so two "
            f"services under one name would each get a part of them. Give it the name of this service: kafka://host:9092?group=billing"
        )
    names = Names(source, where.group, where.prefix, where.dlqs.get(source, ""))
    purposes = (names_of(where, source) if names.given_dlq else names).purposes
    return {name.replace(".", "_"): purpose for name, purpose in purposes.items()}
