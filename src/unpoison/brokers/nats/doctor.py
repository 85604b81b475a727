"""Find what is wrong with this account, as far as this user may see. It only asks: nothing is created, taken or acknowledged."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from unpoison.brokers.nats import checks
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.names import NAMED, Names, fits, names_of
from unpoison.brokers.nats.topology import SCHEDULES_SINCE, config_of, consumer, filters, own_consumers, work_consumer
from unpoison.brokers.nats.url import Address, address
from unpoison.errors import ConfigError
from unpoison.model.wording import counted
from unpoison.port import findings
from unpoison.port.broker import Finding
from unpoison.port.findings import Check

_OF_SERVER = ("sync-delayed", "storage-nearly-full", "no-schedules")
_OF_SOURCE = ("consumer-unusable", "work-queue-taken", "streams-missing", "schedules-off", "single-copy")
NAMES = (*_OF_SERVER, *checks.NAMES, *_OF_SOURCE, "source-missing", "many-dead-letters")
DEEP = ()
NEARLY = 0.9
PATIENCE = 3.0

NO_SCHEDULES = Check(
    "no-schedules",
    lambda version: version < SCHEDULES_SINCE,
    "NATS {of[0]}.{of[1]} delivers nothing at its time by itself. Retries and delayed messages wait in a stream all the same, "
    "but move on only while a consumer of unpoison runs.",
    "Run NATS 2.12 or later; streams named *_RETRIES from before keep to the old way until they are created again.",
)
STORAGE_NEARLY_FULL = Check(
    "storage-nearly-full",
    lambda account: 0 < account.get("limits", {}).get("max_storage", -1) < account.get("storage", 0) / NEARLY,
    "This account uses {of[storage]:,} of {of[limits][max_storage]:,} bytes on disk. When none are left nothing can be "
    "published, retried or dead-lettered, and every source is paused.",
    "Raise max_file for the account, or see what takes the space: nats stream report",
)
SINGLE_COPY = Check(
    "single-copy",
    lambda stream: bool(stream.get("cluster", {}).get("name")) and stream["config"].get("num_replicas", 1) == 1,
    "Stream {of[config][name]!r} is on one server of the cluster only: while that is down nothing can be published or consumed, "
    "and its disk is all there is.",
    "nats stream edit {of[config][name]} --replicas=3",
)
SCHEDULES_OFF = Check(
    "schedules-off",
    lambda config: config.get("allow_msg_schedules") is not True,
    "Stream {of[name]!r} was made by an older server and has no schedules: what waits in it moves on only while a consumer of "
    "unpoison runs.",
    "Once it is empty delete it, and it is created again:\nnats stream rm {of[name]}",
)

Stream = Mapping[str, Any]
"""As the server describes it: its settings are under `config`."""


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All that is found in this account. Nothing here takes long, so `deep` adds nothing."""
    with closing(Connection(address(url))) as connection:
        found = list(_of_server(connection))
        streams = {each["config"]["name"]: each for each in _streams(connection)}
        known = _sources(connection.address, streams)
        known |= {name: stream for name in sources if (stream := _taking(name, streams)) is not None}
        found += findings.of_sources(sources, known.keys(), connection.address.shown)
        for source in sources or known:
            if source in known:
                found += _of_source(connection, names_of(connection.address, source), known[source], streams)
        return found


def known_sources(url: str) -> Sequence[str]:
    """The sources that this account has been used for."""
    with closing(Connection(address(url))) as connection:
        streams = {each["config"]["name"]: each for each in _streams(connection)}
        return sorted(_sources(connection.address, streams))


def _streams(connection: Connection) -> Iterator[Stream]:
    offset = 0
    while True:
        answer = connection.ask("STREAM.LIST", {"offset": offset}, "listing streams")
        page = answer.get("streams") or []
        yield from page
        offset += len(page)
        if not page or offset >= answer["total"]:
            return


def _sources(where: Address, streams: Mapping[str, Stream]) -> dict[str, Stream]:
    """The streams of the sources that unpoison has used: those with a DLQ."""
    dead = "unpoison.dead."
    subjects = [subject for each in streams.values() for subject in each["config"].get("subjects") or []]
    names = [
        subject.removeprefix(dead) for subject in subjects if subject.startswith(dead) and not subject.startswith(dead + NAMED)
    ]
    names += [source for source, dlq in where.dlqs.items() if dlq in streams]
    return {name: stream for name in names if (stream := _taking(name, streams)) is not None}


def _taking(subject: str, streams: Mapping[str, Stream]) -> Stream | None:
    taken = (each for each in streams.values() if any(fits(subject, one) for one in each["config"].get("subjects") or []))
    return next(taken, None)


def _of_source(connection: Connection, names: Names, work: Stream, streams: Mapping[str, Stream]) -> Iterator[Finding]:
    config = work["config"]
    yield from findings.examine(checks.OF_WORK_STREAMS, checks.Stream(config, names.source))
    yield from findings.examine((SINGLE_COPY,), work)
    own = {name: streams[name]["config"] for name in (names.retries, names.dlq) if name in streams}
    missing = [name for name in (names.retries, names.dlq) if name not in own]
    if missing:
        yield Finding(
            "streams-missing",
            f"Source {names.source!r} of group {names.group!r} lacks {counted(len(missing), 'stream')} that unpoison uses: "
            f"{', '.join(missing)}.",
            "The first publish or run makes them; an app with create=False does not start, and its error has the commands.",
        )
    for each in own.values():
        yield from findings.examine(checks.OF_OWN_STREAMS, checks.Stream(each))
    if names.retries in own and connection.version >= SCHEDULES_SINCE:
        yield from findings.examine((SCHEDULES_OFF,), own[names.retries])
    yield from _of_consumers(connection, names, config)
    if names.dlq not in streams:
        return
    info = connection.ask(f"STREAM.INFO.{names.dlq}", {"subjects_filter": names.dead}, "counting letters")
    dead = sum((info["state"].get("subjects") or {}).values())
    yield from findings.of_dead_letters({names.source: dead}, connection.address.shown)


def _of_consumers(connection: Connection, names: Names, stream: Mapping[str, Any]) -> Iterator[Finding]:
    """About each consumer that unpoison uses; one that is missing is created at the next start."""
    own = work_consumer(names, stream, config_of(connection, f"CONSUMER.INFO.{stream['name']}.{names.group}"))
    used = [(stream["name"], consumer(own, names.source, 0.0)), *own_consumers(names, 0.0, has_schedules=True)]
    for place, wanted in used:
        name, subject = wanted["durable_name"], wanted["filter_subject"]
        config = config_of(connection, f"CONSUMER.INFO.{place}.{name}")
        try:
            if config is not None:
                yield from checks.consumer(place, config, subject, float("inf"))
            elif place == stream["name"] and stream.get("retention") == "workqueue":
                yield from _of_others(connection, names, place)
        except ConfigError as error:
            fix = "Use another group in the URL, as in ?group=billing; what it needs is created."
            yield Finding("consumer-unusable", str(error), fix, stops=True)


def _of_others(connection: Connection, names: Names, stream: str) -> Iterator[Finding]:
    """About a consumer of another program on a work queue, where no second one can take the same messages."""
    found = connection.ask(f"CONSUMER.LIST.{stream}", {}, f"listing consumers of {stream}").get("consumers") or []
    for each in found:
        if any(not taken or fits(names.source, taken) for taken in filters(each["config"])):
            yield Finding(
                "work-queue-taken",
                f"Stream {stream!r} is a work queue, and its consumer {each['name']!r} takes {names.source!r}: the server lets "
                f"no second consumer have the same messages, so group {names.group!r} cannot start.",
                f"Use that consumer, as in ?group={each['name']}, or have the stream keep messages for all (retention limits).",
                stops=True,
            )
            return


def _of_server(connection: Connection) -> Iterator[Finding]:
    yield from findings.examine((NO_SCHEDULES,), connection.version)
    yield from findings.examine((STORAGE_NEARLY_FULL,), connection.ask("INFO", what="looking at the account"))
    yield from _of_disk(connection)


def _of_disk(connection: Connection) -> Iterator[Finding]:
    """How often the server syncs to disk is told only by its monitoring port: at 8222, or where `monitor=` says."""
    first = urlsplit(connection.address.servers[0])
    url = connection.address.monitor or f"http://{first.hostname}:8222"
    try:
        with urlopen(f"{url}/varz", timeout=PATIENCE) as answer:  # noqa: S310 - an address that the user gave
            config = json.loads(answer.read())["jetstream"]["config"]
    except (URLError, OSError, HTTPException, ValueError, KeyError) as error:
        fix = "Start the server with -m 8222, or name its monitoring port in the URL: ?monitor=http://host:8222"
        yield findings.cannot_look("how often the server syncs to disk", f"{url} does not answer: {error}.", fix)
        return
    if not config.get("sync_always"):
        interval = config.get("sync_interval", 120 * checks.SECOND) / checks.SECOND
        yield Finding(
            "sync-delayed",
            f"The server syncs to disk every {interval:g} s: a power cut of all its copies takes what was confirmed since. "
            f"A kill of the server alone takes nothing.",
            "In a cluster keep several copies: ?replicas=3. On a single server, if that is too much:\n"
            "jetstream { sync_interval: always }",
        )
