"""What is wrong with these queues, as far as this user may see? Everything is asked; nothing is made, received or deleted."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from unpoison import findings
from unpoison.broker_url import masked
from unpoison.brokers.sqs.client import Denied, Link
from unpoison.brokers.sqs.doctor import settings
from unpoison.brokers.sqs.doctor.settings import Attributes
from unpoison.brokers.sqs.names import FIFO, Names, check_name
from unpoison.brokers.sqs.topology import Topology
from unpoison.brokers.sqs.url import Address, address
from unpoison.errors import ConfigError
from unpoison.ports import Finding

SHORT_VISIBILITY = 5
NAMES = (*settings.NAMES, "short-visibility", "queues-missing", "source-missing", "many-dead-letters")
DEEP = ()


def examine(
    url: str,
    sources: Sequence[str],
    longest: float | None,
    *,
    deep: bool = False,  # noqa: ARG001 - every broker is asked the same
) -> Sequence[Finding]:
    """All that is found in this region and account. Nothing here takes long, so `deep` adds nothing."""
    where = address(url)
    with closing(Link(where)) as link:
        try:
            queues = _queues(link)
        except Denied as denied:
            raise ConfigError(str(denied)) from None
        known = _sources(queues, where.prefix)
        found = [*_of_time(where, longest), *findings.of_sources(sources, known, where.shown)]
        for source in sources or sorted(known):
            if source in known:
                found += _of_source(link, Names(source, where.prefix), queues, url)
        return found


def known_sources(url: str) -> Sequence[str]:
    """The sources that this region and account have been used for, with the prefix of this URL."""
    where = address(url)
    with closing(Link(where)) as link:
        try:
            return sorted(_sources(_queues(link), where.prefix))
        except Denied as denied:
            raise ConfigError(f"{denied} Without that right, name the source with --source NAME.") from None


def _queues(link: Link) -> dict[str, str]:
    """The queues with our prefix, by name."""
    found: dict[str, str] = {}
    wanted = {"QueueNamePrefix": link.address.prefix} if link.address.prefix else {}
    more: dict[str, str] = {}
    while True:
        answer = link.ask("list_queues", MaxResults=1000, **wanted, **more)
        found.update((url.rpartition("/")[2], url) for url in answer.get("QueueUrls", ()))
        if not answer.get("NextToken"):
            return found
        more = {"NextToken": answer["NextToken"]}


def _sources(queues: dict[str, str], prefix: str) -> set[str]:
    """The sources that unpoison has used: those with a DLQ."""
    names = [name.removeprefix(prefix) for name in queues]
    standard = {name.removesuffix("-dlq") for name in names if name.endswith("-dlq")}
    ordered = {name.removesuffix(f"-dlq{FIFO}") + FIFO for name in names if name.endswith(f"-dlq{FIFO}")}
    return {source for source in standard | ordered if prefix + source in queues}


def _of_source(link: Link, names: Names, queues: dict[str, str], url: str) -> Iterator[Finding]:
    check_name(names.source, names.prefix)
    wanted = [names.dlq, names.suspects, names.replays, names.history, names.lock, names.starts]
    missing = [name for name in (*wanted, *([names.later] if names.is_fifo else [])) if name not in queues]
    if missing:
        yield Finding(
            "queues-missing",
            f"Source {names.source!r} has no queue {missing[0]!r}: who needs it stands still.",
            "Start a consumer or publish: what is missing is made. With create=False the error has the commands.",
        )
    looked_at = Topology(link, create=False)
    try:
        work, dlq = (looked_at.attributes(queues[name]) for name in (names.work, names.dlq))
        lane: Attributes = looked_at.attributes(queues[names.suspects]) if names.suspects in queues else {}
    except Denied as denied:
        fix = "Give this user sqs:GetQueueAttributes on all queues of the source."
        yield findings.cannot_look(f"the queues of {names.source!r}", str(denied), fix)
        return
    yield from settings.work_queue(names.work, work, dlq)
    yield from settings.letters_queue(names.dlq, dlq, work)
    if lane:
        yield from settings.of_redrive(names.suspects, lane, dlq)
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
    yield from settings.handler_time(longest)
