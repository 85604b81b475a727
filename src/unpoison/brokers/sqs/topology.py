"""Create the queues that a source needs, and check those that are there already.

What is missing is created; what is there is never changed. A difference that matters is a finding, with the value in it and the
way out. A source that was deleted is created again only if it was as we create it: another one had rights or settings that we
cannot know.
"""

import json
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from unpoison.brokers.sqs import checks
from unpoison.brokers.sqs.checks import Queue
from unpoison.brokers.sqs.connection import LIMIT, Connection, Denied, NoQueue, Refused
from unpoison.brokers.sqs.names import FIFO, Names, check_name
from unpoison.brokers.sqs.url import Address
from unpoison.brokers.sqs.writing import Copy, No, store
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Finding
from unpoison.port.broker_url import masked
from unpoison.port.findings import examine

DAY = 86_400
RETENTION = 14 * DAY
"""As long as SQS keeps anything. It deletes without a word what is older."""

STARTS_RETENTION = DAY // 6
MOST_RECEIVES = 1_000
"""After so many receives SQS itself moves a message to the DLQ: a last net for when nothing of unpoison runs. It counts what a
killed neighbour held too, so it must be far above every limit of ours."""

REDRIVEN = ("work", "suspects")
"""The kinds of queue that have this net."""

OF_OTHERS = ("Policy", "KmsMasterKeyId", "RedriveAllowPolicy")
"""Attributes of a queue that we never set: who may use it, and with which key."""


def queue_attributes(names: Names, kind: str, address: Address, redrive_policy: str) -> dict[str, str]:
    """The attributes that a queue is made with."""
    is_fifo = str(getattr(names, kind)).endswith(FIFO)
    return {
        "MessageRetentionPeriod": str(STARTS_RETENTION if kind == "starts" else RETENTION),
        "VisibilityTimeout": str(address.visibility),
        **({"FifoQueue": "true"} if is_fifo else {}),
        **({"RedrivePolicy": redrive_policy} if kind in REDRIVEN else {}),
    }


def redrive(dlq_arn: str) -> str:
    """The redrive policy of a queue whose last net is this DLQ."""
    return json.dumps({"deadLetterTargetArn": dlq_arn, "maxReceiveCount": MOST_RECEIVES})


def is_as_made(work: Mapping[str, str], dlq_arn: str) -> bool:
    """Whether the queue of a source has no settings but those that we give it."""
    policy = checks.redrive(work)
    is_ours = policy.get("deadLetterTargetArn") == dlq_arn and str(policy.get("maxReceiveCount")) == str(MOST_RECEIVES)
    return is_ours and not any(work.get(name) for name in OF_OTHERS)


def commands(names: Names, kinds: Sequence[str], address: Address, known_arn: str | None) -> Iterator[str]:
    """Lines of a shell script that makes these queues. `known_arn` is that of a queue of the same account, if there is one."""
    there = "".join(f" {option}" for option in options(address))
    dlq_arn = "" if known_arn is None else known_arn.rpartition(":")[0] + f":{names.dlq}"
    for kind in sorted(kinds, key=lambda kind: kind != "dlq"):  # the others name it
        name = getattr(names, kind)
        told = shlex.quote(json.dumps(queue_attributes(names, kind, address, redrive(dlq_arn or ARN))))
        yield f"aws sqs create-queue --queue-name {name} --attributes {told.replace(ARN, ARN_OF_SHELL)}{there}"
        if kind == "dlq" and not dlq_arn and set(REDRIVEN) & set(kinds):
            url = f'"$(aws sqs get-queue-url --queue-name {name} --query QueueUrl --output text{there})"'
            told = "--attribute-names QueueArn --query Attributes.QueueArn --output text"
            yield f"DLQ_ARN=$(aws sqs get-queue-attributes --queue-url {url} {told}{there})"


ARN, ARN_OF_SHELL = "ARN-OF-THE-DLQ", "'\"$DLQ_ARN\"'"


def options(address: Address) -> Iterator[str]:
    """What the command line of AWS needs to find the same place."""
    endpoint = None if address.endpoint is None else masked(address.endpoint)
    named = {"--region": address.region, "--endpoint-url": endpoint, "--profile": address.profile}
    for option, value in named.items():
        if value is not None:
            yield f"{option} {shlex.quote(value)}"


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

    def __init__(self, connection: Connection, *, create: bool) -> None:
        self._connection, self._create = connection, create
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
        names = check_name(self._connection.address, source)
        kinds = [kind for kind in QUEUES if kind != "later" or names.is_fifo]
        there = self.urls([getattr(names, kind) for kind in kinds])
        urls = {"later": None, **{kind: there[getattr(names, kind)] for kind in kinds}}
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
            policy = redrive(self.attributes(urls["dlq"] or "")["QueueArn"])
        rest = [kind for kind in missing if kind != "dlq"]
        made = self._connection.all_of([partial(self._created, names, kind, policy) for kind in rest])
        urls.update(zip(rest, made, strict=True))

    def _looked_at(self, names: Names, urls: Mapping[str, str | None], existed: set[str]) -> tuple[list[Finding], int, int]:
        """What is to be said about queues that were there before, and how large a message and a letter may be."""
        found = examine((checks.RETRIES_OVERTAKE,), Queue(names.work, {}, {}))
        if not {"work", "dlq"} & existed:
            return found, LIMIT, LIMIT
        work, dlq = self._connection.all_of([partial(self.attributes, urls[kind] or "") for kind in ("work", "dlq")])
        if "work" in existed:
            found = examine(checks.OF_WORK_QUEUES, Queue(names.work, work, dlq))
            if not is_as_made(work, dlq.get("QueueArn", "")):
                self._adopted.add(names.source)
        limit, letters_limit = (min(LIMIT, int(each.get("MaximumMessageSize", LIMIT))) for each in (work, dlq))
        return [*found, *examine(checks.OF_LETTER_QUEUES, Queue(names.dlq, dlq, work))], limit, letters_limit

    def url(self, name: str) -> str | None:
        """Where the queue with this name is, if there is one."""
        try:
            return str(self._connection.ask("get_queue_url", QueueName=name)["QueueUrl"])
        except NoQueue:
            return None

    def urls(self, names: Sequence[str]) -> dict[str, str | None]:
        return dict(zip(names, self._connection.all_of([partial(self.url, name) for name in names]), strict=True))

    def attributes(self, url: str) -> dict[str, str]:
        answer = self._connection.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return dict(answer.get("Attributes", {}))

    def _check_may_make(self, names: Names, urls: Mapping[str, str | None], missing: Sequence[str]) -> None:
        """Raise if some of these must not be made here; says of all of them how to make them."""
        if not self._create:
            known = next((self.attributes(urls[kind] or "")["QueueArn"] for kind in ("dlq", "work") if urls[kind]), None)
            missed = [getattr(names, kind) for kind in missing]
            script = "\n".join(commands(names, missing, self._connection.address, known))
            raise ConfigError(
                f"Source {names.source!r} lacks {counted(len(missing), 'queue')}, and create=False forbids creating any: "
                f"{', '.join(missed)}. Check name, region and account; to make what is missing:\n{script}"
            )
        if "work" in missing and names.source in self._adopted:
            raise BrokerUnavailable(
                f"Queue {names.work!r} is not there any more. It had settings that unpoison did not make (access policy, redrive "
                f"policy or key), so none is made in its place. Make it again as it was: consuming goes on by itself."
            )

    def _created(self, names: Names, kind: str, redrive: str) -> str:
        name = getattr(names, kind)
        wanted = queue_attributes(names, kind, self._connection.address, redrive)
        try:
            return str(self._connection.ask("create_queue", QueueName=name, Attributes=wanted)["QueueUrl"])
        except Refused as refused:
            there = self.url(name) if refused.code in EXISTS else None  # another process was faster
            if there is None:
                raise
            return there


class Client:
    """What one user of SQS shares, from open() to close(): the connection, and the queues it knows. For many threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection = Connection(address)
        self.is_open = False
        self._lock = threading.RLock()
        self._topology = Topology(self.connection, create=True)

    def open(self, *, create: bool) -> None:
        with self._lock:
            self.is_open = True
            self._topology = Topology(self.connection, create=create)

    def ensure(self, source: str) -> list[Finding]:
        """Have what the source needs. Here, at the start, a missing right is an error in the configuration; later it may be given
        back, and is waited for."""
        with self._lock:
            try:
                return self._topology.ensure(source)
            except Denied as denied:
                raise ConfigError(str(denied)) from None

    def topic(self, source: str) -> Topic:
        with self._lock:
            if not self.is_open:
                raise BrokerUnavailable(f"The connection to {self.address.shown} is not open. Call open() first.")
            return self._topology.topic(source)

    def remake(self, source: str) -> None:
        """Create a queue again that was deleted. Where create=False forbids that, wait until it is there again."""
        with self._lock:
            try:
                self._topology.remake(source)
            except ConfigError as missing:
                raise BrokerUnavailable(str(missing)) from None

    def url(self, name: str) -> str | None:
        """Where the queue with this name is, if there is one."""
        with self._lock:
            return self._topology.url(name)

    @property
    def created(self) -> set[str]:
        """Sources that were not there before, until publishing has said so."""
        return self._topology.created

    def store(self, copies: Sequence[Copy]) -> dict[int, No]:
        """Store these; returns why some are not stored."""
        return store(self.connection, copies) if copies else {}

    def counts(self, url: str) -> tuple[int, int, int]:
        """How many messages of a queue can be received, wait for their time, and are held by a consumer."""
        wanted = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "Delayed", "NotVisible")]
        found = self.connection.ask("get_queue_attributes", QueueUrl=url, AttributeNames=wanted).get("Attributes", {})
        ready, delayed, held = (int(found.get(name, 0)) for name in wanted)
        return ready, delayed, held

    def retention(self, url: str) -> float:
        """Seconds after which SQS deletes the messages of a queue."""
        wanted = ["MessageRetentionPeriod"]
        found = self.connection.ask("get_queue_attributes", QueueUrl=url, AttributeNames=wanted).get("Attributes", {})
        return float(found.get(wanted[0], 4 * DAY))

    def close(self) -> None:
        self.is_open = False
        self.connection.close()
