"""Which queues does a source need, and what if they are there already?

What is missing is made; what is there is never changed. A difference that matters is a finding, with the value in it and the way
out.
"""

import json
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from unpoison.brokers.sqs.client import Link, NoQueue, Refused
from unpoison.brokers.sqs.doctor import settings
from unpoison.brokers.sqs.names import FIFO, Names, check_name
from unpoison.brokers.sqs.writing import LIMIT
from unpoison.errors import ConfigError
from unpoison.ports import Finding

DAY = 86_400
RETENTION = 14 * DAY
"""As long as SQS keeps anything. It deletes without a word what is older."""

STARTS_RETENTION = DAY // 6
MOST_RECEIVES = 1_000
"""After so many receives SQS itself moves a message to the DLQ: a last net for when nothing of unpoison runs. It counts what a
killed neighbour held too, so it must be far above every limit of ours."""

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
        self._make(names, urls, [kind for kind in kinds if kind not in existed])
        if "work" not in existed:
            self.created.add(source)
        findings, limit, letters_limit = self._looked_at(names, urls, existed)
        self._topics[source] = Topic(names, **urls, limit=limit, letters_limit=letters_limit)  # type: ignore[arg-type]
        return findings

    def _make(self, names: Names, urls: dict[str, str | None], missing: list[str]) -> None:
        """The DLQ first: the source names it."""
        if "dlq" in missing:
            urls["dlq"] = self._created(names.dlq, {})
        policy: dict[str, str] = {}
        if {"work", "suspects"} & set(missing):
            backstop = {"deadLetterTargetArn": self.attributes(urls["dlq"] or "")["QueueArn"], "maxReceiveCount": MOST_RECEIVES}
            policy = {"RedrivePolicy": json.dumps(backstop)}
        rest = [kind for kind in missing if kind != "dlq"]
        made = self._link.all_of(
            [
                partial(self._created, getattr(names, kind), policy if kind in ("work", "suspects") else _OWN.get(kind, {}))
                for kind in rest
            ]
        )
        urls.update(zip(rest, made, strict=True))

    def _looked_at(self, names: Names, urls: Mapping[str, str | None], existed: set[str]) -> tuple[list[Finding], int, int]:
        """What is to be said about queues that were there before, and how large a message and a letter may be."""
        if not {"work", "dlq"} & existed:
            return settings.of_order(names.work), LIMIT, LIMIT
        work, dlq = self._link.all_of([partial(self.attributes, urls[kind] or "") for kind in ("work", "dlq")])
        found = settings.work_queue(names.work, work, dlq) if "work" in existed else settings.of_order(names.work)
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

    def _created(self, name: str, more: Mapping[str, str]) -> str:
        wanted = {
            "MessageRetentionPeriod": str(RETENTION),
            "VisibilityTimeout": str(self._link.address.visibility),
            **({"FifoQueue": "true"} if name.endswith(FIFO) else {}),
            **more,
        }
        if not self._create:
            raise ConfigError(
                f"Queue {name!r} does not exist, and nothing is to be created here. Check name, region and account; to make it:\n"
                f"aws sqs create-queue --queue-name {name} --attributes {shlex.quote(json.dumps(wanted))}"
            )
        try:
            return str(self._link.ask("create_queue", QueueName=name, Attributes=wanted)["QueueUrl"])
        except Refused as refused:
            there = self.url(name) if refused.code in EXISTS else None  # somebody was faster
            if there is None:
                raise
            return there


_OWN: dict[str, dict[str, Any]] = {"starts": {"MessageRetentionPeriod": str(STARTS_RETENTION)}}
