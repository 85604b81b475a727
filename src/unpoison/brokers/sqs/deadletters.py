"""Look at dead letters, send them again and remove them.

A queue cannot be searched, and nothing joins two steps. So every look takes all letters, under a lock, and puts them back. A
letter is sent again by storing it in the replays: from then on it is replayed, whatever happens. Then it is taken from the DLQ,
and a consumer moves it from the replays to the source and tells so in the history. What a person gives up goes to the history
too. A look sees all three; a letter that was dealt with but is still in the DLQ, since an operator was killed, is taken from
there.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from unpoison.brokers.sqs import copies, foreign
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.brokers.sqs.connection import NoQueue
from unpoison.brokers.sqs.copies import Found
from unpoison.brokers.sqs.envelope import GROUP
from unpoison.brokers.sqs.queue_pass import QueuePass
from unpoison.brokers.sqs.sending_back import send_back, url_of, whole_letter
from unpoison.brokers.sqs.subscription import receive
from unpoison.brokers.sqs.topology import Client, Topic
from unpoison.brokers.sqs.writing import Copy, No
from unpoison.errors import BrokerUnavailable, PayloadError, UnpoisonError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.wording import counted
from unpoison.port.broker import Progress, Published
from unpoison.port.copying.dlq_index import Entry, Keep, portions
from unpoison.port.copying.ids import unique
from unpoison.port.copying.whole_dlq import WholeDLQ

PATIENCE = 120.0
ASK_AGAIN = (0.02, 0.05, 0.1, 0.2)
PER_LETTER = 0.02
"""Seconds that a look may take for each letter, beside what it may take at least."""


@contextmanager
def locked(client: Client, topic: Topic) -> Iterator[float]:
    """No other operator works on the letters of this source meanwhile. Gives until when that holds, by our own clock.

    Letters can only be looked at by taking them out for a moment; a second operator would see none. So each look and each change
    is done by the holder of a message in a FIFO queue of its own. All messages there are of one group, of which SQS hands out one
    at a time: so it does not matter if two operators put one there. One that is killed holds it until its time is over, and by
    then all letters that were taken can be seen again.
    """
    try:
        with _held(client, topic) as until:
            yield until
    except NoQueue as gone:
        client.remake(topic.names.source)
        raise BrokerUnavailable(f"{gone} It was created again. Try again.") from None


@contextmanager
def _held(client: Client, topic: Topic) -> Iterator[float]:
    letters = sum(client.counts(topic.dlq)) + sum(client.counts(topic.history))
    lasts = int(client.address.visibility + PER_LETTER * letters) + 1
    ends, tries = time.monotonic() + PATIENCE + lasts, 0
    while True:
        asked_at = time.monotonic()
        found = receive(client.connection, topic.lock, 1, visibility=lasts)
        if found:
            break
        if time.monotonic() > ends:
            raise BrokerUnavailable(
                f"Another operator has been working on {topic.names.dlq!r} for {PATIENCE:g} s. Try again later."
            )
        if not any(client.counts(topic.lock)):
            _put_one_there(client, topic)
        time.sleep(ASK_AGAIN[min(tries, len(ASK_AGAIN) - 1)])
        tries += 1
    try:
        yield asked_at + lasts
    finally:
        with suppress(UnpoisonError):  # else it comes back by itself
            client.connection.ask(
                "change_message_visibility", QueueUrl=topic.lock, ReceiptHandle=found[0]["ReceiptHandle"], VisibilityTimeout=0
            )


def _put_one_there(client: Client, topic: Topic) -> None:
    entry = {GROUP: "lock", "MessageDeduplicationId": unique(), "MessageBody": "The holder of this works on the dead letters."}
    client.connection.ask("send_message", QueueUrl=topic.lock, **entry)


def check_time(until: float, dlq: str) -> None:
    """Refuse to change anything once others may see the letters too."""
    if time.monotonic() >= until:
        raise BrokerUnavailable(
            f"Looking through {dlq!r} took longer than its letters can be kept from others; nothing was changed. "
            f"Try again; a larger visibility in the URL gives it more time."
        )


DEAD, REPLAYED, DISCARDED = "dead", "replayed", "discarded"
REQUESTS = 16
"""Under way at once, for one operator."""

_pack, unpacked = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(dict[str, Any]).decode
AnyReading = TypeVar("AnyReading", bound="LettersReading")


class SQSDeadLetters(WholeDLQ):
    """The DLQ of one source."""

    def __init__(self, broker: SQSBroker, source: str) -> None:
        broker.client.connection.widen(REQUESTS)
        super().__init__(broker, source, partial(_reading, broker, source), partial(_counted, broker, source))
        self._client = broker.client

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return send_back(self._client, self._source, letters, REQUESTS)


def _counted(broker: SQSBroker, source: str) -> int:
    """About: what SQS says, with those that an operator looks at."""
    ready, _, looked_at = broker.client.counts(broker.client.topic(source).dlq)
    return ready + looked_at


@contextmanager
def _reading(broker: SQSBroker, source: str) -> Iterator["LettersReading"]:
    client = broker.client
    with locked(client, client.topic(source)) as until, put_back_after(LettersReading(broker, source, until)) as reading:
        yield reading


@contextmanager
def put_back_after(reading: AnyReading) -> Iterator[AnyReading]:
    """What was taken and not let go is in its queue again when this ends."""
    try:
        yield reading
    except UnpoisonError:
        with suppress(UnpoisonError):  # else they come back by themselves, and a look meanwhile does not see them
            reading.put_back()
        raise
    except BaseException:
        reading.put_back()
        raise
    reading.put_back()


class LettersReading:
    """The letters of a source, taken out of their queues. `until` is when others can see them again."""

    in_order = False

    def __init__(self, broker: SQSBroker, source: str, until: float) -> None:
        self._topic = broker.client.topic(source)
        states = {self._topic.dlq: (DEAD, DEAD), self._topic.replays: (None, REPLAYED), self._topic.history: (None, DISCARDED)}
        self._begin_with(broker, source, until, states)
        self.history, self.name = self._topic.history, self._topic.names.dlq

    def _begin_with(self, broker: SQSBroker, source: str, until: float, states: dict[str, tuple[str | None, str]]) -> None:
        """Of these queues, the first of which is the DLQ. Each has the state that letters there have to tell, and the one that
        others are in."""
        self._client, self._source, self._until = broker.client, source, until
        self.history, self.dlq, self.name = "", next(iter(states)), source
        self._keep: Keep = _nobody
        self._read_as = states
        self._others: dict[str, str | None] = {}
        """The URLs of other queues that letters came from."""
        self._passes = {url: QueuePass(self._client, url, until, partial(self._receive, url)) for url in states}
        self.total = self._passes[self.dlq].total

    def _receive(self, url: str, raw: Any) -> None:
        found = self._found(url, raw)
        letter = found.letter
        self._keep(Entry(letter.id, letter.message.id, letter.state, url, raw["MessageId"], found.identity), _pack(raw))

    def _found(self, url: str, raw: Any) -> Found:
        state, otherwise = self._read_as[url]
        return copies.read(self._source, raw, state, otherwise)

    def take_past(self, keep: Keep) -> None:
        self._keep = keep
        for url in (self._topic.replays, self._topic.history):
            taken = self._passes[url]
            if taken.total or taken.held_by_others:  # else SQS says that it is empty, and is believed
                taken.take()

    def take(self, keep: Keep, most: int | None, progress: Progress | None) -> bool:
        """All of them, whatever is asked for: they come in no order."""
        self._keep = keep
        self._passes[self.dlq].take(None, progress)
        check_time(self._until, self.name)  # else some are missing here
        return True

    def letter(self, entry: Entry, data: bytes) -> DeadLetter:
        return self._found(entry.place, unpacked(data)).letter

    def whole(self, entry: Entry, data: bytes) -> WholeLetter:
        raw = unpacked(data)
        return whole_letter(self._found(entry.place, raw), raw)

    def store(self, chosen: Sequence[Entry], data: Callable[[Entry], bytes], state: str) -> Iterator[Sequence[Entry]]:
        for part in portions(chosen):
            check_time(self._until, self.name)
            letters = [self._found(entry.place, unpacked(data(entry))) for entry in part]
            elsewhere = self._elsewhere(part, letters) if state == REPLAYED else {}
            refused = self._stored(elsewhere)
            notes = {}
            for number in range(len(part)):
                if number not in refused:
                    is_moved_on = state == REPLAYED and number not in elsewhere
                    queue = self._topic.replays if is_moved_on else self._topic.history
                    notes[number] = self._note(queue, part[number], letters[number], state)
            refused |= self._stored(notes)
            yield [entry for number, entry in enumerate(part) if number not in refused]
            if refused:
                why = next(iter(refused.values()))
                raise BrokerUnavailable(
                    f"Taken from {self.name!r}: {counted(len(part) - len(refused), 'letter')}. Still there: "
                    f"{len(refused)}, since SQS refuses to store them elsewhere: {why.text} ({why.code})."
                )

    def _stored(self, made: Mapping[int, Copy]) -> dict[int, No]:
        """Store these; tells by the same numbers why some are not stored."""
        numbers = list(made)
        return {numbers[at]: why for at, why in self._client.store(list(made.values())).items()}

    def _note(self, queue: str, entry: Entry, found: Found, state: str) -> Copy:
        told = copies.written(found.letter, found.seen, entry.id, state)
        return copies.fitted(queue, found.seen, told, found.raw)

    def _elsewhere(self, part: Sequence[Entry], letters: Sequence[Found]) -> dict[int, Copy]:
        """Those that came from other queues, to which no consumer of this source moves anything, so that it is done here.

        An operator that is killed before the history knows of it leaves them in the DLQ: they may be sent a second time.
        """
        origins = [foreign.origin(self._topic.names, found.told) for found in letters]
        return {
            number: copies.elsewhere(self._url(queue, part[number]), letters[number])
            for number, queue in enumerate(origins)
            if queue is not None
        }

    def _url(self, queue: str, entry: Entry) -> str:
        if queue not in self._others:
            self._others[queue] = url_of(self._client, queue)
        url = self._others[queue]
        if url is None:
            raise PayloadError(
                f"Letter {entry.id!r} cannot be sent: it came from queue {queue!r}, which does not exist any more, or which this "
                f"user may not see. Create the queue, or discard the letter: unpoison dlq discard {entry.id}"
            )
        return url

    def let_go(self, entries: Sequence[Entry], *, stored: bool) -> None:
        check_time(self._until, self.name)
        for url, taken in self._passes.items():
            left = taken.let_go([entry.handle for entry in entries if entry.place == url], tries=2 if stored else 1)
            if left and not stored:
                name = self.name if url == self.dlq else self._topic.names.history
                raise BrokerUnavailable(
                    f"SQS did not delete {len(left)} of the messages in {name!r}; they are still there. Try again."
                )

    def put_back(self) -> None:
        self._keep = _nobody
        for taken in self._passes.values():
            taken.put_back()


def _nobody(_: Entry, __: bytes) -> None:
    raise AssertionError("nothing was asked for")
