"""Which promises are kept on which broker, version and kind of queue, and how often is that checked?

One `Row` for each broker that a promise can be tried on. Tests are made from the rows (conftest.py), and
`make contract ARGS=--matrix` prints them as a table. Another broker is a lab and a row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.contract.folder_lab import FolderLab
from tests.contract.kafka_lab import SESSION_TIMEOUT, KafkaLab, SweptLab
from tests.contract.labs import CollectedLab, MemoryLab, SQLiteLab
from tests.contract.nats_lab import ACK_WAIT, SHORT_ACK_WAIT, NATSLab
from tests.contract.postgresql_lab import PostgreSQLLab
from tests.contract.rabbitmq_lab import ClassicLab, RabbitMQLab
from tests.contract.redis_lab import RedisLab
from tests.contract.sqs_lab import SHORT_VISIBILITY, VISIBILITY, SQSLab
from tests.servers_plugin import fixture_of
from unpoison.testing import Lab, contract
from unpoison.testing.contract import (
    dead_letters,
    delivering,
    fleet,
    flow_control,
    isolation_flow_control,
    isolation_kills,
    isolation_suspects,
    killing,
    letters_elsewhere,
    ownership,
    pausing,
    publishing,
    retrying,
    sharing,
)
from unpoison.testing.isolation import promises as isolation
from unpoison.testing.lab import Promise, Trait, traits_of

Promises = frozenset[Promise]


def promises(*topics: ModuleType) -> Promises:
    return frozenset(value for topic in topics for name, value in vars(topic).items() if name.startswith("test_"))


KILLS, ISOLATION = promises(killing), promises(isolation)
CONTRACT = promises(contract) - KILLS
EVERY = CONTRACT | KILLS | ISOLATION
NONE: Promises = frozenset()

TOPICS = {topic.__name__.rpartition(".")[2]: promises(topic) for topic in (*contract.TOPICS, *isolation.TOPICS)}

BROKERS_PART = promises(isolation_kills)
"""Promises about isolated workers in which the broker has a part: who comes back, who is suspected, who is charged. The others
depend on the broker little, so on slow servers they are long."""

HEART = frozenset({isolation_kills.test_a_message_that_kills_every_process_of_its_consumer_is_dead_lettered_as_lost})
"""RabbitMQ 4, classic queues and PostgreSQL count and return messages in their own ways; who is charged does not depend on it."""

CONTROL_ALONE = promises(flow_control, fleet) - {
    flow_control.test_a_bad_deploy_dead_letters_sixty_messages_at_most_and_the_next_one_handles_the_rest,
    flow_control.test_a_throttled_message_waits_alone_and_several_slow_their_source,
    flow_control.test_retries_beyond_the_budget_wait_for_their_turn_and_are_not_charged_for_it,
}
"""Promises about flow control in which the broker has no part that it has not in those few: on servers they are long."""

OUTAGES = frozenset(
    {
        flow_control.test_an_outage_dead_letters_nothing_and_is_probed_one_message_at_a_time_until_it_ends,
        flow_control.test_in_a_partial_outage_the_others_go_on_and_a_killed_consumer_charges_nobody,
    }
)
"""A quarter of a minute each: every day where a return costs nothing, and where it costs a copy."""

ORDERED = frozenset(promise for promise in CONTRACT if Trait.ORDERED in traits_of(promise))

MANY_REQUESTS_ON_SQS = frozenset(
    {
        dead_letters.test_a_letter_that_is_not_there_is_named_in_the_error,
        dead_letters.test_a_purge_deletes_every_letter_of_its_source_and_sends_none,
        dead_letters.test_a_replay_of_messages_that_fail_again_ends,
        sharing.test_a_letter_that_two_processes_replay_and_purge_is_either_sent_or_purged,
        sharing.test_a_letter_that_two_threads_replay_and_purge_is_either_sent_or_purged,
        sharing.test_two_operators_who_replay_the_oldest_take_different_letters,
        sharing.test_several_processes_handle_each_message_of_a_source_once,
    }
)
"""Each takes hundreds of requests, and each request costs milliseconds of a processor here and at the server."""

LONG_EVERYWHERE = frozenset(
    {
        isolation_flow_control.test_ten_minutes_of_outage_end_with_twice_the_earlier_rate_until_the_backlog_is_gone,
        isolation_flow_control.test_a_bad_deploy_of_five_thousand_messages_dead_letters_sixty_at_most,
        isolation_flow_control.test_a_thousand_undecodable_messages_pause_nothing,
        pausing.test_a_pause_longer_than_a_lease_takes_nothing_from_its_owner_and_charges_nobody,
        pausing.test_a_source_that_is_paused_twenty_times_makes_nobody_returned_and_charges_nobody,
        pausing.test_twenty_pauses_while_messages_arrive_make_nobody_returned,
    }
)
"""They take seconds or minutes. Another promise is the same in short."""

MINUTES_ON_MOTO = frozenset(
    {
        flow_control.test_one_poison_in_a_thousand_moves_nothing,
        sharing.test_a_letter_that_two_processes_replay_and_purge_is_either_sent_or_purged,
        sharing.test_a_letter_that_two_threads_replay_and_purge_is_either_sent_or_purged,
        sharing.test_several_processes_handle_each_message_of_a_source_once,
    }
)
"""moto looks for each receipt among all messages."""


@dataclass(frozen=True)
class Wanted:
    """What a lab is made for and of: the promise that is tried on it, a folder, and `server(name)`."""

    promise: Promise
    folder: Path
    server: Callable[[str], Any]

    @property
    def traits(self) -> Trait:
        return traits_of(self.promise)

    @property
    def takeover_is_near(self) -> bool:
        """Whether the lab must let a takeover take a second or two instead of half a minute. Only then: on a busy machine any
        consumer may be silent for so long, and would lose its messages."""
        if self.promise in ISOLATION:
            return Trait.SILENT not in self.traits
        return self.promise in KILLS or Trait.TAKEOVER in self.traits


@dataclass(frozen=True)
class Row:
    """One broker of one version: a lab on it, and which promises are tried there every day and which only in a long run."""

    name: str
    make: Callable[[Wanted], Lab]
    everyday: Promises
    long: Promises = NONE
    servers: tuple[str, ...] = ()
    """By their names in `servers.ENTRIES`."""
    kills_take: int | None = field(default=1800, kw_only=True)
    """Seconds that one promise about kills at every line may take; None is what any test may take."""
    kill_parts: int = field(default=1, kw_only=True)
    """Where a broker hands messages out again only after a while, each kill takes seconds: so many tests share the lines, and run
    side by side."""
    part: int = field(default=0, kw_only=True)

    def lab(self, request: pytest.FixtureRequest, folder: Path) -> Lab:
        """One for this test."""
        lab = self.make(Wanted(request.function, folder, lambda server: request.getfixturevalue(fixture_of(server))))
        lab.kill_part = (self.part, self.kill_parts)
        return lab

    def parts(self, promise: Promise) -> Iterator[tuple[str, "Row"]]:
        """This row, or its parts, with the names of their tests."""
        if promise not in KILLS or self.kill_parts == 1:
            yield self.name, replace(self, kill_parts=1)
            return
        for part in range(self.kill_parts):
            yield f"{self.name} part {part + 1} of {self.kill_parts}", replace(self, part=part)

    def has(self, promise: Promise) -> bool:
        return promise in self.everyday or promise in self.long

    def marks(self, promise: Promise) -> Iterator[pytest.MarkDecorator]:
        if promise not in self.everyday or promise in LONG_EVERYWHERE:
            yield pytest.mark.long
        if promise in KILLS and self.kills_take is not None:
            yield pytest.mark.timeout(self.kills_take)
        if self.servers:
            yield pytest.mark.servers(*self.servers)


def _nats(server: str) -> Callable[[Wanted], Lab]:
    def make(wanted: Wanted) -> Lab:
        return NATSLab(wanted.server(server), wanted.folder, SHORT_ACK_WAIT if wanted.takeover_is_near else ACK_WAIT)

    return make


def _kafka(wanted: Wanted) -> Lab:
    kind = SweptLab if wanted.promise in KILLS else KafkaLab
    # Each of several consumers needs a partition. A consumer that is silent for longer than its session loses its messages.
    return kind(
        wanted.server("kafka"),
        wanted.folder,
        partitions=8 if Trait.SEVERAL_CONSUMERS in wanted.traits else 1,
        session_timeout=30.0 if Trait.SILENT in wanted.traits else SESSION_TIMEOUT,
    )


def _sqs(server: str, wait: int = 0) -> Callable[[Wanted], Lab]:
    def make(wanted: Wanted) -> Lab:
        prefetched = Trait.PREFETCHED in wanted.traits  # each poller reads ten ahead
        near = 6 if prefetched else SHORT_VISIBILITY
        return SQSLab(
            wanted.server(server),
            wanted.folder,
            wait=wait,
            visibility=near if wanted.takeover_is_near else VISIBILITY,
            pollers=16 if prefetched else 4,
            with_proxy=Trait.FAULTY_BROKER in wanted.traits,
        )

    return make


def _sqs_by_order(wanted: Wanted) -> Lab:
    """A standard queue keeps order as well as it can: moto does so always, ElasticMQ shuffles what was sent in a millisecond."""
    return _sqs("moto" if wanted.promise in ORDERED else "elasticmq")(wanted)


def _rabbitmq(server: str, kind: type[RabbitMQLab]) -> Callable[[Wanted], Lab]:
    return lambda wanted: kind(wanted.server(server), wanted.folder)


def _redis(server: str) -> Callable[[Wanted], Lab]:
    return lambda wanted: RedisLab(wanted.server(server), wanted.folder)


def _folder(wanted: Wanted) -> Lab:
    return FolderLab(wanted.folder, 1.0 if wanted.takeover_is_near else 30.0)


FOLDER_TOPICS = promises(retrying, dead_letters, letters_elsewhere, pausing)
FOLDER_EVERYDAY = frozenset(each for each in FOLDER_TOPICS if Trait.TAKEOVER not in traits_of(each))
ON_SERVERS = CONTRACT - CONTROL_ALONE
KAFKA_TOPICS = promises(delivering, publishing, ownership, pausing, retrying, flow_control, letters_elsewhere)
KAFKA_EVERYDAY = KAFKA_TOPICS - CONTROL_ALONE

COLLECTED = promises(dead_letters) | {
    sharing.test_a_letter_that_two_processes_replay_and_purge_is_either_sent_or_purged,
    sharing.test_a_letter_that_two_threads_replay_and_purge_is_either_sent_or_purged,
    sharing.test_two_operators_who_replay_the_oldest_take_different_letters,
}
"""Promises about the letters that operators work on."""

ROWS = (
    Row("sqlite", lambda wanted: SQLiteLab(wanted.folder), EVERY, kills_take=None),
    Row("sqlite collected", lambda wanted: CollectedLab(wanted.folder), COLLECTED),
    # It lives in one process, so there is nothing to isolate; promises that need several skip themselves.
    Row("memory", lambda wanted: MemoryLab(wanted.folder), CONTRACT | KILLS, kills_take=None),
    Row(
        "postgresql",
        lambda wanted: PostgreSQLLab(wanted.folder, wanted.server("postgresql").url),
        ON_SERVERS | HEART,
        EVERY,
        ("postgresql",),
    ),
    Row(
        "rabbitmq 3.10 quorum",
        _rabbitmq("rabbitmq", RabbitMQLab),
        ON_SERVERS | BROKERS_PART | OUTAGES,
        EVERY,
        ("rabbitmq",),
    ),
    Row("rabbitmq 3.10 classic", _rabbitmq("rabbitmq", ClassicLab), NONE, EVERY, ("rabbitmq",)),
    Row("rabbitmq 4.3 quorum", _rabbitmq("rabbitmq-4", RabbitMQLab), HEART, EVERY, ("rabbitmq-4",)),
    Row("rabbitmq 4.3 classic", _rabbitmq("rabbitmq-4", ClassicLab), HEART, EVERY, ("rabbitmq-4",)),
    Row("redis", _redis("redis"), ON_SERVERS, EVERY, ("redis",)),
    Row("redis 8", _redis("redis-8"), NONE, CONTRACT | promises(isolation_suspects), ("redis-8",)),
    Row("nats", _nats("nats"), ON_SERVERS, EVERY, ("nats",), kill_parts=3),
    # It delivers nothing at its time by itself, and counts in its own way.
    Row("nats 2.9", _nats("nats-2.9"), NONE, EVERY, ("nats-2.9",), kill_parts=3),
    Row("kafka", _kafka, KAFKA_EVERYDAY, EVERY, ("kafka",), kill_parts=3),
    Row(
        "sqs",
        _sqs_by_order,
        ON_SERVERS - MANY_REQUESTS_ON_SQS,
        KILLS | ISOLATION | CONTROL_ALONE,
        ("elasticmq", "moto"),
        kill_parts=6,
    ),
    Row("sqs elasticmq long polling", _sqs("elasticmq", wait=1), NONE, CONTRACT - ORDERED, ("elasticmq",)),
    # The adapter that CONTRIBUTING shows how to write.
    Row("folder", _folder, FOLDER_EVERYDAY, CONTRACT | KILLS),
    Row("sqs moto", _sqs("moto"), NONE, CONTRACT - MINUTES_ON_MOTO, ("moto",)),
)
ROW = {row.name: row for row in ROWS}


def parameters(promise: Promise) -> list[Any]:
    """The rows on which this promise is tried, as parameters of a test."""
    return [
        pytest.param(part, id=name, marks=tuple(row.marks(promise)))
        for row in ROWS
        if row.has(promise)
        for name, part in row.parts(promise)
    ]


def table() -> list[str]:
    """Topics by rows."""
    headings = [["topic", "", "", ""], ["promises", "", "", ""], *([*row.name.split(), "", "", ""][:4] for row in ROWS)]
    lines = [list(line) for line in zip(*headings, strict=True)]
    lines += [[name, str(len(topic)), *(_cell(row, topic) for row in ROWS)] for name, topic in TOPICS.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return [
        *filter(None, texts),
        "",
        "day: every day (make test, make contract). long: in a long run only (make test-all). -: not tried there.",
        "3d 4l: of these promises three every day and four in a long run. Servers: " + _servers(),
    ]


def _cell(row: Row, topic: Promises) -> str:
    everyday = row.everyday - LONG_EVERYWHERE
    day, long = len(topic & everyday), len(topic & ((row.long | row.everyday) - everyday))
    whole = {(len(topic), 0): "day", (0, len(topic)): "long", (0, 0): "-"}.get((day, long))
    return whole or " ".join(text for count, text in ((day, f"{day}d"), (long, f"{long}l")) if count)


def _servers() -> str:
    names = dict.fromkeys(name for row in ROWS for name in row.servers)
    return ", ".join(names) + "."
