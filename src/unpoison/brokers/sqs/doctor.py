"""Find what is wrong with these queues, as far as this user may see. It only asks: nothing is created, received or deleted."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress

import msgspec

from unpoison.brokers.sqs import checks
from unpoison.brokers.sqs.checks import Queue
from unpoison.brokers.sqs.connection import Connection, Denied
from unpoison.brokers.sqs.names import FIFO, Names, check_name
from unpoison.brokers.sqs.topology import Topology
from unpoison.brokers.sqs.url import Address, address
from unpoison.errors import ConfigError
from unpoison.model.wording import counted
from unpoison.port import findings
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked

SHORT_VISIBILITY = 5
NAMES = (*checks.NAMES, "short-visibility", "queues-missing", "source-missing", "many-dead-letters")
DEEP = ()


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All that is found in this region and account, or about these sources, whether unpoison has used them before or not. Nothing
    here takes long, so `deep` adds nothing."""
    where = address(url)
    with closing(Connection(where)) as connection:
        try:
            queues = _queues_of(connection, sources) if sources else _queues(connection)
            there = [source for source in sources if where.prefix + source in queues] or _sources(queues, where)
            known = there if set(sources) <= set(there) else _could_be_meant(connection, there)
        except Denied as denied:
            raise ConfigError(str(denied)) from None
        found = [*_of_time(where, longest), *findings.of_sources(sources, known, where.shown)]
        for source in sources or sorted(there):
            if source in there:
                found += _of_source(connection, check_name(where, source), queues, url)
        return found


def _queues_of(connection: Connection, sources: Sequence[str]) -> dict[str, str]:
    """The queues of these sources that are there, by name. Needs no right that a consumer does not have."""
    wanted = [name for source in sources for name in check_name(connection.address, source).all()]
    urls = Topology(connection, create=False).urls(wanted)
    return {name: url for name, url in urls.items() if url is not None}


def _could_be_meant(connection: Connection, there: Iterable[str]) -> set[str]:
    """Sources to be named where one is missing. Who may not list queues does without."""
    with suppress(Denied):
        return {*there, *_sources(_queues(connection), connection.address)}
    return set(there)


def known_sources(url: str) -> Sequence[str]:
    """The sources that this region and account have been used for, with the prefix of this URL."""
    where = address(url)
    with closing(Connection(where)) as connection:
        try:
            return sorted(_sources(_queues(connection), where))
        except Denied as denied:
            name = "name the source with --source NAME (with unpoison status: as its argument)"
            raise ConfigError(f"{denied} Without that right, {name}.") from None


def _queues(connection: Connection) -> dict[str, str]:
    """The queues with our prefix, by name."""
    found: dict[str, str] = {}
    wanted = {"QueueNamePrefix": connection.address.prefix} if connection.address.prefix else {}
    more: dict[str, str] = {}
    while True:
        answer = connection.ask("list_queues", MaxResults=1000, **wanted, **more)
        found.update((url.rpartition("/")[2], url) for url in answer.get("QueueUrls", ()))
        if not answer.get("NextToken"):
            return found
        more = {"NextToken": answer["NextToken"]}


def _sources(queues: dict[str, str], where: Address) -> set[str]:
    """The sources that unpoison has used: those with a DLQ."""
    prefix, names = where.prefix, [name.removeprefix(where.prefix) for name in queues]
    standard = {name.removesuffix("-dlq") for name in names if name.endswith("-dlq")}
    ordered = {name.removesuffix(f"-dlq{FIFO}") + FIFO for name in names if name.endswith(f"-dlq{FIFO}")}
    named = {source for source, dlq in where.dlqs.items() if prefix + dlq in queues}
    return {source for source in standard | ordered | named if prefix + source in queues}


def _of_source(connection: Connection, names: Names, queues: dict[str, str], url: str) -> Iterator[Finding]:
    missing = [name for name in names.all() if name not in queues]
    if missing:
        yield Finding(
            "queues-missing",
            f"Source {names.source!r} lacks {counted(len(missing), 'queue')} that unpoison uses: {', '.join(missing)}.",
            "The first publish or run makes them; an app with create=False does not start, and its error has the commands.",
        )
    looked_at = Topology(connection, create=False)
    try:
        work, dlq, lane = (
            looked_at.attributes(queues[name]) if name in queues else {} for name in (names.work, names.dlq, names.suspects)
        )
    except Denied as denied:
        fix = "Give this user sqs:GetQueueAttributes on all queues of the source."
        yield findings.cannot_look(f"the queues of {names.source!r}", str(denied), fix)
        return
    if dlq:
        yield from findings.examine(checks.OF_WORK_QUEUES, Queue(names.work, work, dlq))
        yield from findings.examine(checks.OF_LETTER_QUEUES, Queue(names.dlq, dlq, work))
    else:
        dlq = {"QueueArn": f"{work.get('QueueArn', '').rpartition(':')[0]}:{names.dlq}"}  # as it will be
        for finding in findings.examine(checks.OF_WORK_QUEUES, Queue(names.work, work, dlq)):
            first = "Make the DLQ first, then:\n" if "redrive" in finding.name else ""
            yield msgspec.structs.replace(finding, fix=first + finding.fix)
    if lane:
        yield from findings.examine(checks.OF_REDRIVE, Queue(names.suspects, lane, dlq))
    dead = int(dlq.get("ApproximateNumberOfMessages", 0)) + int(dlq.get("ApproximateNumberOfMessagesNotVisible", 0))
    yield from findings.of_dead_letters({names.source: dead}, masked(url))


def _of_time(where: Address, longest: float | None) -> Iterator[Finding]:
    if where.visibility < SHORT_VISIBILITY:
        yield Finding(
            "short-visibility",
            f"A consumer has its messages for {where.visibility} s at a time (visibility in the URL): one that is paused for "
            f"longer loses them, and they run twice.",
            "Leave visibility out of the URL (30 s), or have 10 or more.",
        )
    yield from checks.handler_time(longest)
