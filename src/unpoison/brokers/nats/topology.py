"""Create the streams and consumers that a source needs, and check those that are there already.

What is missing is created; what is there is never changed. A difference that matters is a finding, with the value in it and the
way out; one that we cannot work with is an error at start-up. A stream of the source that we did not create is not created again
when it is deleted: it may have taken other subjects, and kept messages for others.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from unpoison.brokers.nats import checks
from unpoison.brokers.nats.connection import Connection, Refused
from unpoison.brokers.nats.names import Names, names_of
from unpoison.brokers.nats.url import Address
from unpoison.errors import ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Finding
from unpoison.port.findings import examine

SCHEDULES_SINCE = (2, 12)
MOST_PENDING = 100_000
"""Messages that may be handed out and unsettled at once, by all processes together."""

SECOND = 1_000_000_000
DUPLICATES = 120 * SECOND
DUPLICATE_LETTERS = 3600 * SECOND


def work(names: Names, address: Address) -> dict[str, Any]:
    """The stream of a source, where no stream takes its subject."""
    return _made(address, names.base, [names.source], retention="workqueue", duplicate_window=DUPLICATES)


def retries(names: Names, address: Address, version: tuple[int, int]) -> dict[str, Any]:
    subjects = [names.again, names.suspects, f"{names.later}.*"]
    # The server takes no schedules in a stream that refuses new messages when it is full; without limits it is never full.
    flags = {"allow_msg_schedules": True, "discard": "old"} if version >= SCHEDULES_SINCE else {}
    return _made(address, names.retries, subjects, retention="workqueue", duplicate_window=DUPLICATES, **flags)


def letters(names: Names, address: Address) -> dict[str, Any]:
    kinds = [f"{names.claim}.*", f"{names.replays}.*", f"{names.discarded}.*", f"{names.all_starts}.*"]
    return _made(address, names.dlq, [names.dead, *kinds], retention="limits", duplicate_window=DUPLICATE_LETTERS)


def _made(address: Address, name: str, subjects: list[str], **more: Any) -> dict[str, Any]:
    """A stream as we would make it: on disk, and full rather than forgetful."""
    return {"name": name, "subjects": subjects, "storage": "file", "discard": "new", "num_replicas": address.replicas, **more}


def consumer(name: str, subject: str, ack_wait: float) -> dict[str, Any]:
    """A consumer as we would make it. Without a limit of deliveries: the server would stop at it and tell nobody."""
    return {
        "durable_name": name,
        "filter_subject": subject,
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * SECOND),
        "max_deliver": -1,
        "max_ack_pending": MOST_PENDING,
    }


def own_consumers(names: Names, ack_wait: float, *, has_schedules: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those on the streams that are ours alone, each with its stream."""
    yield names.retries, consumer("again", names.again, ack_wait)
    yield names.retries, consumer("suspects", names.suspects, ack_wait)
    yield names.dlq, consumer(names.group, f"{names.replay}.*", ack_wait) | {"deliver_policy": "new"}
    if not has_schedules:
        yield names.retries, consumer("later", f"{names.later}.*", 30.0) | {"max_ack_pending": -1}


STREAM_NOT_FOUND, CONSUMER_NOT_FOUND, NAME_IN_USE, OVERLAP, CONSUMER_EXISTS = 10059, 10014, 10058, 10065, (10148, 10013, 10105)
NOT_UNIQUE = (10099, 10100)
MADE_WITH = ("name", "subjects", "retention", "storage")
"""Settings of a stream by which one that we have made is told from others."""


class DurableConsumer(NamedTuple):
    """A durable consumer."""

    stream: str
    consumer: str
    ack_wait: float


class Topic(NamedTuple):
    """What there is for one source."""

    names: Names
    work: DurableConsumer
    again: DurableConsumer
    replays: DurableConsumer
    suspects: DurableConsumer
    later: DurableConsumer | None
    """Who waits for delays to be over; None where the server does so itself."""


class Topology:
    """Makes and checks streams and consumers over one connection. `created` gets the sources that were not there before,
    `adopted` the streams of sources that are not as we would have made them."""

    def __init__(self, connection: Connection, *, create: bool, created: set[str], adopted: dict[str, str]) -> None:
        self.connection, self._create, self._created, self._adopted = connection, create, created, adopted
        self._topics: dict[str, Topic] = {}
        self._missing: list[tuple[str, str]] = []
        """What may not be made here, with the command for each."""

    def topic(self, source: str) -> Topic:
        """What the source has; looked for, and made if need be, the first time."""
        if source not in self._topics:
            self.ensure(source)
        return self._topics[source]

    def forget(self, source: str) -> None:
        """Look for it again: what belongs to it was deleted."""
        self._topics.pop(source, None)

    def ensure(self, source: str) -> list[Finding]:
        """Have everything that a source needs. What is known to be there is not asked for again."""
        if source in self._topics:
            return []
        names = names_of(self.connection.address, source)
        self._missing = []
        findings: list[Finding] = []
        stream = self._work_stream(names, findings)
        address = self.connection.address
        kept = self._stream(retries(names, address, self.connection.version), findings)
        self._stream(letters(names, address), findings)
        work = self._work_consumer(names, stream, findings)
        # Older servers take the flag, and do not show it in their answer.
        own = own_consumers(names, address.ack_wait, has_schedules=kept.get("allow_msg_schedules") is True)
        again, suspects, replays, *later = [self._consumer(stream, wanted, findings) for stream, wanted in own]
        self._check_missing(source)
        self._topics[source] = Topic(names, work, again, replays, suspects, later[0] if later else None)
        return findings

    def _check_missing(self, source: str) -> None:
        """Raise if something is not there and must not be made: one error for all of it."""
        if self._missing:
            names, commands = ", ".join(name for name, _ in self._missing), "\n".join(command for _, command in self._missing)
            raise ConfigError(
                f"Source {source!r} lacks {counted(len(self._missing), 'stream or consumer', 'streams and consumers')}, and "
                f"create=False forbids creating any: {names}. Check the name; to make what is missing:\n{commands}"
            )

    def _work_stream(self, names: Names, findings: list[Finding]) -> Mapping[str, Any]:
        """The stream that takes the subject, whatever it is called; else one of our own."""
        ours = work(names, self.connection.address)
        if (there := stream_of(self.connection, names.source)) is not None:
            config = self.connection.ask(f"STREAM.INFO.{there}", what=f"looking at stream {there}")["config"]
            findings += examine(checks.OF_WORK_STREAMS, checks.Stream(config, names.source))
            if any(config.get(name) != value for name, value in ours.items() if name in MADE_WITH):
                self._adopted[names.source] = there
            return dict(config)
        if names.source in self._adopted:
            raise ConfigError(
                f"Stream {self._adopted[names.source]!r}, which took the subject {names.source!r}, is not there any more. "
                f"unpoison did not make it, so it makes none in its place. Make it again as it was: consuming goes on by itself."
            )
        made = self._stream(ours, findings)
        self._created.add(names.source)
        return made

    def _stream(self, wanted: dict[str, Any], findings: list[Finding]) -> Mapping[str, Any]:
        name = wanted["name"]
        config = config_of(self.connection, f"STREAM.INFO.{name}")
        if config is None:
            return self._create_stream(wanted)
        missing = sorted(set(wanted["subjects"]) - set(config.get("subjects") or []))
        if missing:
            raise ConfigError(
                f"Stream {name!r} was there before and does not take the subject {missing[0]!r}. Add it with: "
                f"nats stream edit {name} --subjects={','.join([*(config.get('subjects') or []), *missing])}"
            )
        findings += examine(checks.OF_OWN_STREAMS, checks.Stream(config))
        return config

    def _create_stream(self, wanted: dict[str, Any]) -> Mapping[str, Any]:
        name = wanted["name"]
        if not self._create:
            self._missing.append((f"stream {name}", f"nats stream add --config=<(echo '{json.dumps(wanted)}')"))
            return wanted
        try:
            return dict(self.connection.ask(f"STREAM.CREATE.{name}", wanted, f"making stream {name}")["config"])
        except Refused as refused:
            if refused.code == NAME_IN_USE:  # another process was faster
                return dict(self.connection.ask(f"STREAM.INFO.{name}", what=f"looking at stream {name}")["config"])
            if refused.code != OVERLAP:
                raise
            raise ConfigError(
                f"Stream {name!r} cannot be made: another stream takes some of its subjects ({', '.join(wanted['subjects'])}). "
                f"See: nats stream ls --subject='{wanted['subjects'][0]}'"
            ) from None

    def _work_consumer(self, names: Names, stream: Mapping[str, Any], findings: list[Finding]) -> DurableConsumer:
        known = config_of(self.connection, f"CONSUMER.INFO.{stream['name']}.{names.group}")
        wanted = consumer(work_consumer(names, stream, known), names.source, self.connection.address.ack_wait)
        return self._consumer(stream["name"], wanted, findings)

    def _consumer(self, stream: str, wanted: dict[str, Any], findings: list[Finding]) -> DurableConsumer:
        name = wanted["durable_name"]
        config = config_of(self.connection, f"CONSUMER.INFO.{stream}.{name}")
        if config is None:
            config = self._create_consumer(stream, wanted)
        else:
            findings += checks.consumer(stream, config, wanted["filter_subject"], self.connection.address.ack_wait)
        return DurableConsumer(stream, name, config["ack_wait"] / SECOND)

    def _create_consumer(self, stream: str, wanted: dict[str, Any]) -> Mapping[str, Any]:
        name = wanted["durable_name"]
        if not self._create:
            command = f"nats consumer add {stream} --config=<(echo '{json.dumps(wanted)}')"
            self._missing.append((f"consumer {name} of stream {stream}", command))
            return wanted
        question = {"stream_name": stream, "config": wanted, "action": "create"}
        try:
            return dict(
                self.connection.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", question, f"making consumer {name}")["config"]
            )
        except Refused as refused:
            if refused.code in NOT_UNIQUE:
                raise ConfigError(
                    f"Stream {stream!r} is a work queue, and another consumer takes {wanted['filter_subject']!r} from it: group "
                    f"{name!r} would get nothing. Use that consumer's name as ?group=, or have the stream keep messages for all "
                    f"(retention limits)."
                ) from None
            there = config_of(self.connection, f"CONSUMER.INFO.{stream}.{name}") if refused.code in CONSUMER_EXISTS else None
            if there is None:
                raise
            return there


def stream_of(connection: Connection, subject: str) -> str | None:
    """The stream that takes this subject."""
    found = connection.ask("STREAM.NAMES", {"subject": subject}, f"looking for the stream of {subject}")["streams"] or []
    return str(found[0]) if found else None


def config_of(connection: Connection, question: str) -> Mapping[str, Any] | None:
    """The settings of a stream or consumer; None if it is not there."""
    try:
        return dict(connection.ask(question, what=f"asking for {question}")["config"])
    except Refused as refused:
        if refused.code not in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
            raise
        return None


def work_consumer(names: Names, stream: Mapping[str, Any], known: Mapping[str, Any] | None) -> str:
    """The one called as the group (`known`) if it takes this source and nothing else, or could; else one named after both."""
    alone = stream.get("subjects") == [names.source]
    fits = alone if known is None else names.source in filters(known) or (alone and not any(filters(known)))
    return names.group if fits else f"{names.group}_{names.base}"


def filters(config: Mapping[str, Any]) -> list[str]:
    """The subjects that a consumer takes; one that is empty stands for all."""
    return list(config.get("filter_subjects") or [config.get("filter_subject", "")])
