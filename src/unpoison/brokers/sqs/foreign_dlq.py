"""Open a queue as a DLQ by its own name, whoever made it: `--dlq orders-redriven`.

Nothing is made beside it: there is no lock, so two operators each see what the other does not look at, and no history.

To look at letters means to receive them, and SQS counts that. A DLQ that has a redrive policy of its own moves a letter on
after so many looks: such a queue is not looked at unless the user accepts that.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from unpoison.brokers.sqs import checks, copies
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.brokers.sqs.connection import NoQueue
from unpoison.brokers.sqs.copies import Found
from unpoison.brokers.sqs.deadletters import DEAD, PER_LETTER, REPLAYED, REQUESTS, LettersReading, put_back_after, unpacked
from unpoison.brokers.sqs.names import FIFO
from unpoison.brokers.sqs.sending_back import send_back_elsewhere, whole_letter
from unpoison.brokers.sqs.writing import Copy
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.wording import counted
from unpoison.port.broker import Published
from unpoison.port.copying.dlq_index import Entry, Keep, portions
from unpoison.port.copying.whole_dlq import WholeDLQ
from unpoison.port.foreign import dlq as by_name


def opened(url: str, dlq: str, accepted: Collection[str]) -> "ForeignDLQ":
    by_name.check_accepted(accepted)
    broker = SQSBroker(url)
    broker.open([], create=False)
    try:
        return ForeignDLQ(broker, dlq, _checked(broker, dlq, accepted))
    except BaseException:
        broker.close()
        raise


def _checked(broker: SQSBroker, dlq: str, accepted: Collection[str]) -> str:
    """Where the queue is."""
    client, where = broker.client, broker.client.address
    url = client.url(dlq)
    if url is None:
        raise by_name.not_there("queue", dlq, where.shown)
    letters = dlq.removesuffix(FIFO) + ("-fifo" if dlq.endswith(FIFO) else "")
    usual = dlq.removesuffix(FIFO).removesuffix("-dlq")
    locks = [f"{letters}-lock{FIFO}", *([f"{usual}-fifo-dlq-lock{FIFO}"] if dlq.endswith(f"-dlq{FIFO}") else [])]
    if any(client.url(name) is not None for name in locks):
        named = [source for source, name in where.dlqs.items() if where.prefix + name == dlq]
        ending = FIFO if dlq.endswith(FIFO) else ""
        raise by_name.is_ours(dlq, named[0] if named else usual.removeprefix(where.prefix) + ending)
    asked = client.connection.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["RedrivePolicy"])
    policy = checks.redrive(asked.get("Attributes") or {})
    if policy and by_name.DELIVERY_LIMIT not in accepted:
        to = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
        raise ConfigError(
            f"Queue {dlq!r} has a redrive policy of its own: after {policy.get('maxReceiveCount')} receives SQS moves a "
            f"letter on to {to!r}, and each look at it is a receive. Remove the policy, or name {to!r}. "
            f"{by_name.accepting(by_name.DELIVERY_LIMIT)}"
        )
    return url


class ForeignDLQ(WholeDLQ):
    """Any queue."""

    def __init__(self, broker: SQSBroker, dlq: str, url: str) -> None:
        broker.client.connection.widen(REQUESTS)
        super().__init__(broker, dlq, partial(_reading, broker, dlq, url), partial(_counted, broker, url))
        self._client = broker.client

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return send_back_elsewhere(self._client, self._source, letters, REQUESTS, origin_of)


def origin_of(found: Found) -> str:
    """The queue that a letter came from; empty if that is not told."""
    return str(found.letter.original.get("source", "")) if found.told is None else found.told.source


def _counted(broker: SQSBroker, url: str) -> int:
    ready, _, looked_at = broker.client.counts(url)
    return ready + looked_at


@contextmanager
def _reading(broker: SQSBroker, dlq: str, url: str) -> Iterator["ForeignReading"]:
    lasts = broker.client.address.visibility + PER_LETTER * sum(broker.client.counts(url)) + 1
    try:
        with put_back_after(ForeignReading(broker, dlq, url, time.monotonic() + lasts)) as reading:
            yield reading
    except NoQueue as gone:
        raise BrokerUnavailable(f"{gone} Others own it: nothing was made in its place.") from None


class ForeignReading(LettersReading):
    """The letters of any queue, taken out of it."""

    def __init__(self, broker: SQSBroker, dlq: str, url: str, until: float) -> None:
        self._begin_with(broker, dlq, until, {url: (DEAD, DEAD)})

    def take_past(self, keep: Keep) -> None:
        pass

    def letter(self, entry: Entry, data: bytes) -> DeadLetter:
        found = self._found(entry.place, unpacked(data))
        return by_name.of_source(found.letter, origin_of(found) or self.name)

    def whole(self, entry: Entry, data: bytes) -> WholeLetter:
        found = self._found(entry.place, unpacked(data))
        return whole_letter(msgspec.structs.replace(found, letter=self.letter(entry, data)), unpacked(data))

    def store(self, chosen: Sequence[Entry], data: Callable[[Entry], bytes], state: str) -> Iterator[Sequence[Entry]]:
        """An operator that is killed before a letter is deleted leaves it here: it may be sent a second time."""
        if state != REPLAYED:
            raise by_name.keeps_no_history(self.name)
        for part in portions(chosen):
            made = {number: self._again(entry, data(entry)) for number, entry in enumerate(part)}
            refused = self._stored(made)
            yield [entry for number, entry in enumerate(part) if number not in refused]
            if refused:
                why = next(iter(refused.values()))
                raise BrokerUnavailable(
                    f"Sent: {counted(len(part) - len(refused), 'letter')}. Still in {self.name!r}: {len(refused)}, since SQS "
                    f"refuses to store them where they came from: {why.text} ({why.code})."
                )

    def _again(self, entry: Entry, data: bytes) -> Copy:
        found = self._found(entry.place, unpacked(data))
        queue = origin_of(found)
        if not queue or queue == self.name:
            raise by_name.without_origin(entry.id)
        return copies.elsewhere(self._url(queue, entry), found)
