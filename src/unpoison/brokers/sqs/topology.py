"""Which queues does a source need, and what if they are there already?

What is missing is made; what is there is never changed. A difference that matters is a finding, with the value in it and the way
out. A source that was deleted is made anew only if it was as we make it: another one had rights or settings that we cannot know.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from unpoison.brokers.sqs import wanted
from unpoison.brokers.sqs.client import Link, NoQueue, Refused
from unpoison.brokers.sqs.doctor import settings
from unpoison.brokers.sqs.names import Names, check_name
from unpoison.brokers.sqs.writing import LIMIT
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Finding

EXISTS = ("QueueNameExists", "QueueAlreadyExists")


class Topic(NamedTuple):
    """The queues of one source, as URLs."""

    names: Names
    work: str
    dlq: str
    suspects: str
    replays: str
    history: str
    lock: str
    starts: str
    later: str | None
    """Where messages of a FIFO source wait; in a standard queue each can wait by itself."""
    limit: int
    """Bytes that a message may have."""
    letters_limit: int

    @property
    def is_fifo(self) -> bool:
        return self.later is not None


QUEUES = tuple(kind for kind in Topic._fields if kind not in ("names", "limit", "letters_limit"))


class Topology:
    """Makes and checks queues."""

    def __init__(self, link: Link, *, create: bool) -> None:
        self._link, self._create = link, create
        self._topics: dict[str, Topic] = {}
        self._adopted: set[str] = set()
        """Sources whose queue was there before and is not as we would have made it."""
        self.created: set[str] = set()

    def topic(self, source: str) -> Topic:
        """What the source has; looked for, and made if need be, the first time."""
        if source not in self._topics:
            self.ensure(source)
        return self._topics[source]

    def ensure(self, source: str) -> list[Finding]:
        """Have everything that a source needs. What is known to be there is not asked for again."""
        return [] if source in self._topics else self.remake(source)

    def remake(self, source: str) -> list[Finding]:
        """Have everything that a source needs, whatever was there before. If that fails, what was known stays known."""
        names = check_name(source, self._link.address.prefix)
        kinds = [kind for kind in QUEUES if kind != "later" or names.is_fifo]
        found = self._link.all_of([partial(self.url, getattr(names, kind)) for kind in kinds])
        urls: dict[str, str | None] = {"later": None, **dict(zip(kinds, found, strict=True))}
        existed = {kind for kind in kinds if urls[kind] is not None}
        missing = [kind for kind in kinds if kind not in existed]
        if missing:
            self._check_may_make(names, urls, missing)
            self._make(names, urls, missing)
        if "work" not in existed:
            self.created.add(source)
        findings, limit, letters_limit = self._looked_at(names, urls, existed)
        self._topics[source] = Topic(names, **urls, limit=limit, letters_limit=letters_limit)  # type: ignore[arg-type]
        return findings

    def _make(self, names: Names, urls: dict[str, str | None], missing: list[str]) -> None:
        """The DLQ first: the source names it."""
        if "dlq" in missing:
            urls["dlq"] = self._created(names, "dlq", "")
        policy = ""
        if {"work", "suspects"} & set(missing):
            policy = wanted.redrive(self.attributes(urls["dlq"] or "")["QueueArn"])
        rest = [kind for kind in missing if kind != "dlq"]
        made = self._link.all_of([partial(self._created, names, kind, policy) for kind in rest])
        urls.update(zip(rest, made, strict=True))

    def _looked_at(self, names: Names, urls: Mapping[str, str | None], existed: set[str]) -> tuple[list[Finding], int, int]:
        """What is to be said about queues that were there before, and how large a message and a letter may be."""
        if not {"work", "dlq"} & existed:
            return settings.of_order(names.work), LIMIT, LIMIT
        work, dlq = self._link.all_of([partial(self.attributes, urls[kind] or "") for kind in ("work", "dlq")])
        found = settings.of_order(names.work)
        if "work" in existed:
            found = settings.work_queue(names.work, work, dlq)
            if not wanted.is_as_made(work, dlq.get("QueueArn", "")):
                self._adopted.add(names.source)
        limit, letters_limit = (min(LIMIT, int(each.get("MaximumMessageSize", LIMIT))) for each in (work, dlq))
        return [*found, *settings.letters_queue(names.dlq, dlq, work)], limit, letters_limit

    def url(self, name: str) -> str | None:
        """Where the queue with this name is, if there is one."""
        try:
            return str(self._link.ask("get_queue_url", QueueName=name)["QueueUrl"])
        except NoQueue:
            return None

    def attributes(self, url: str) -> dict[str, str]:
        answer = self._link.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return dict(answer.get("Attributes", {}))

    def _check_may_make(self, names: Names, urls: Mapping[str, str | None], missing: Sequence[str]) -> None:
        """Raise if some of these must not be made here; says of all of them how to make them."""
        if not self._create:
            known = next((self.attributes(urls[kind] or "")["QueueArn"] for kind in ("dlq", "work") if urls[kind]), None)
            missed = [getattr(names, kind) for kind in missing]
            commands = "\n".join(wanted.commands(names, missing, self._link.address, known))
            raise ConfigError(
                f"Source {names.source!r} lacks {counted(len(missing), 'queue')}, and create=False forbids creating any: "
                f"{', '.join(missed)}. Check name, region and account; to make what is missing:\n{commands}"
            )
        if "work" in missing and names.source in self._adopted:
            raise BrokerUnavailable(
                f"Queue {names.work!r} is not there any more. It had settings that unpoison did not make (access policy, redrive "
                f"policy or key), so none is made in its place. Make it again as it was: consuming goes on by itself."
            )

    def _created(self, names: Names, kind: str, redrive: str) -> str:
        name = getattr(names, kind)
        attributes = wanted.attributes(names, kind, self._link.address, redrive)
        try:
            return str(self._link.ask("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"])
        except Refused as refused:
            there = self.url(name) if refused.code in EXISTS else None  # somebody was faster
            if there is None:
                raise
            return there
